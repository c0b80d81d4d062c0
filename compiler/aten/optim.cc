// Fused optimizers and the gradient scaler: functional twins of _fused_adam(w)_, _fused_sgd_, _fused_adagrad_, _amp_*.
// Results are the lists that the in-place operator writes, one after the other.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

// Nothing changes where the scaler found an infinity: `found` is its flag as a number, or empty.
Tensor Keep(Tensor found, Tensor before, Tensor after) {
  return found ? ir::Select(ir::Eq(found, 1), before, after) : after;
}

using Lists = llvm::SmallVector<llvm::SmallVector<Tensor>>;
Result Concatenated(const Lists& lists) {
  llvm::SmallVector<Tensor> all;
  for (const auto& list : lists) all.append(list);
  return all;
}

struct Gradient {
  Tensor unscaled, stored;  // what the step uses, and what is written back
};
// grad / grad_scale; PyTorch writes that back, but where the scaler found an infinity.
Gradient ReadGradient(AtenCall& c, Tensor grad, int grad_scale, Tensor found, bool maximize, DType dtype) {
  Tensor before = ir::Convert(grad, dtype), g = before;
  if (c.has(grad_scale)) g = before / ir::Reshape(c.as(grad_scale, dtype), {});
  return {maximize ? -g : g, c.has(grad_scale) ? Keep(found, before, g) : grad};
}

// 1 - x of a number near 1, of which x in `dtype` would leave few digits.
Tensor Rest(AtenCall& c, int x, DType dtype) {
  return ir::Convert(1.0 - ir::Reshape(c.as(x, DType::kFloat64), {}), dtype);
}

Tensor FoundInfinity(AtenCall& c, int i) { return c.has(i) ? ir::Reshape(c.as(i, DType::kFloat32), {}) : Tensor(); }

// (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, beta1, beta2, weight_decay, eps, amsgrad,
//  maximize, grad_scale, found_inf)
Lowering FusedAdam(bool decoupled) {
  return [decoupled](AtenCall& c) -> Result {
    auto params = c.tensors(0), grads = c.tensors(1), means = c.tensors(2), squares = c.tensors(3),
         greatest = c.tensors(4), steps = c.tensors(5);
    bool amsgrad = c.boolean(11);
    Tensor found = FoundInfinity(c, 14);
    Lists out(5);
    for (size_t k = 0; k < params.size(); ++k) {
      DType dtype = OpMath(params[k].dtype());
      auto number = [&](int i) { return ir::Reshape(c.as(i, dtype), {}); };
      Tensor lr = number(6), beta2 = number(8), decay = number(9), eps = number(10);
      Tensor p = ir::Convert(params[k], dtype), m = ir::Convert(means[k], dtype), v = ir::Convert(squares[k], dtype);
      auto [g, stored] = ReadGradient(c, grads[k], 13, found, c.boolean(12), dtype);
      Tensor step = ir::Reshape(ir::Convert(steps[k], DType::kFloat64), {});
      auto correction = [&](int beta) {  // 1 - beta^step, a number of the whole tensor, in f64
        return 1.0 - ir::Pow(ir::Reshape(c.as(beta, DType::kFloat64), {}), step);
      };
      Tensor new_p = decoupled ? p - lr * decay * p : p;
      if (!decoupled) g = g + ir::Select(ir::Eq(decay, 0), 0, p * decay);
      Tensor new_m = Lerp(m, g, Rest(c, 7, dtype));
      Tensor new_v = beta2 * v + Rest(c, 8, dtype) * g * g;
      Tensor root = ir::Convert(ir::Sqrt(correction(8)), dtype);
      Tensor size = ir::Convert(ir::Reshape(c.as(6, DType::kFloat64), {}) / correction(7), dtype);
      Tensor used = new_v;
      if (amsgrad) {
        Tensor before = ir::Convert(greatest[k], dtype);
        used = ir::Max(before, new_v);
        out[4].push_back(Keep(found, before, used));
      }
      new_p = new_p - size * new_m / (ir::Sqrt(used) / root + eps);
      out[0].push_back(Keep(found, p, new_p));
      out[1].push_back(stored);
      out[2].push_back(Keep(found, m, new_m));
      out[3].push_back(Keep(found, v, new_v));
    }
    if (!amsgrad) out[4] = greatest;
    return Concatenated(out);
  };
}

// (params, grads, buffers, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step, grad_scale,
//  found_inf)
Result FusedSgd(AtenCall& c) {
  auto params = c.tensors(0), grads = c.tensors(1), buffers = c.tensors(2);
  Tensor found = FoundInfinity(c, 11);
  Lists out(3);
  for (size_t k = 0; k < params.size(); ++k) {
    DType dtype = OpMath(params[k].dtype());
    auto number = [&](int i) { return ir::Reshape(c.as(i, dtype), {}); };
    Tensor p = ir::Convert(params[k], dtype), decay = number(3), momentum = number(4), lr = number(5);
    auto [g, stored] = ReadGradient(c, grads[k], 10, found, c.boolean(8), dtype);
    g = g + ir::Select(ir::Eq(decay, 0), 0, p * decay);
    if (k < buffers.size() && buffers[k]) {
      Tensor before = ir::Convert(buffers[k], dtype);
      Tensor buffer = c.boolean(9) ? g : momentum * before + Rest(c, 6, dtype) * g;
      out[2].push_back(Keep(found, before, buffer));
      g = c.boolean(7) ? g + momentum * buffer : buffer;
    }
    out[0].push_back(Keep(found, p, p - lr * g));
    out[1].push_back(stored);
  }
  return Concatenated(out);
}

// (params, grads, state_sums, steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf)
Result FusedAdagrad(AtenCall& c) {
  auto params = c.tensors(0), grads = c.tensors(1), sums = c.tensors(2), steps = c.tensors(3);
  Tensor found = FoundInfinity(c, 10);
  Lists out(4);
  for (size_t k = 0; k < params.size(); ++k) {
    DType dtype = OpMath(params[k].dtype());
    auto number = [&](int i) { return ir::Reshape(c.as(i, dtype), {}); };
    Tensor p = ir::Convert(params[k], dtype), sum = ir::Convert(sums[k], dtype), decay = number(6);
    auto [g, stored] = ReadGradient(c, grads[k], 9, found, c.boolean(8), dtype);
    g = g + ir::Select(ir::Eq(decay, 0), 0, p * decay);
    Tensor step = ir::Reshape(ir::Convert(steps[k], dtype), {});
    Tensor size = number(4) / (1.0 + (step - 1.0) * number(5));
    Tensor new_sum = sum + g * g;
    out[0].push_back(Keep(found, p, p - size * g / (ir::Sqrt(new_sum) + number(7))));
    out[1].push_back(stored);
    out[2].push_back(Keep(found, sum, new_sum));
  }
  size_t listed = params.size() * 4;
  if (c.num_results() == listed) out[3] = steps;
  return Concatenated(out);
}

// (grads, found_inf, inv_scale) -> grads, found_inf
Result Unscale(AtenCall& c) {
  llvm::SmallVector<Tensor> results;
  Tensor found = c.as(1, DType::kFloat32);
  for (Tensor grad : c.tensors(0)) {
    Tensor g = ir::Convert(grad, OpMath(grad.dtype()));
    Tensor bad = ir::Reduce(ir::ReduceKind::any, ir::Not(IsFinite(g)), AllDims(g));
    found = ir::Select(bad, 1, found);
    Tensor scale = ir::Reshape(c.as(2, g.dtype()), {});
    results.push_back(ir::Select(ir::Eq(scale, 1), g, g * scale));
  }
  results.push_back(found);
  return results;
}

// (scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval) -> scale, growth_tracker
Result UpdateScale(AtenCall& c) {
  Tensor scale = c.as(0, DType::kFloat32), tracker = c.as(1, DType::kInt32);
  Tensor found = ir::Ne(ir::Reshape(c.as(2, DType::kFloat32), scale.dims()), 0);
  Tensor successes = tracker + 1, grows = ir::Eq(successes, static_cast<double>(c.integer(5)));
  Tensor grown = ir::Convert(c.as(0, DType::kFloat64) * c.as(3, DType::kFloat64), DType::kFloat32);
  grown = ir::Select(ir::IsFinite(grown), grown, scale);
  Tensor shrunk = ir::Convert(c.as(0, DType::kFloat64) * c.as(4, DType::kFloat64), DType::kFloat32);
  Tensor on_success = ir::Select(ir::Reshape(grows, scale.dims()), grown, scale);
  Tensor found_there = ir::Reshape(found, tracker.dims());
  return {ir::Select(found, shrunk, on_success), ir::Select(found_there | grows, 0, successes)};
}

}  // namespace

void RegisterOptim(Registry& r) {
  r.Add({"aten::_fused_adam", "aten::_fused_adam.tensor_lr"}, FusedAdam(false));
  r.Add({"aten::_fused_adamw", "aten::_fused_adamw.tensor_lr"}, FusedAdam(true));
  r.Add({"aten::_fused_sgd", "aten::_fused_sgd.tensor_lr"}, FusedSgd);
  r.Add({"aten::_fused_adagrad", "aten::_fused_adagrad.tensor_lr"}, FusedAdagrad);
  r.Add("aten::_amp_foreach_non_finite_check_and_unscale", Unscale);
  r.Add("aten::_amp_update_scale", UpdateScale);
}

}  // namespace tpu::aten
