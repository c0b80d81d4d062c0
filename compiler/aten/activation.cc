// Activation functions and their gradients.
#include <cmath>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

constexpr double kGeluBeta = M_SQRT2 * M_2_SQRTPI * 0.5;
constexpr double kGeluKappa = 0.044715;

Result Gelu(AtenCall& c) {
  Tensor x = In(c, 0);
  if (c.string(1) == "tanh") {
    Tensor inner = kGeluBeta * (x + kGeluKappa * (x * x * x));
    return 0.5 * x * (1.0 + ir::Tanh(inner));
  }
  return x * 0.5 * (1.0 + ir::Erf(x * M_SQRT1_2));
}

Result GeluBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  if (c.string(2) == "tanh") {
    Tensor square = x * x;
    Tensor t = ir::Tanh(kGeluBeta * (x + kGeluKappa * (square * x)));
    Tensor left = 0.5 * (1.0 + t);
    Tensor right = 0.5 * x * (1.0 - t * t) * (kGeluBeta * (1.0 + 3 * kGeluKappa * square));
    return dy * (left + right);
  }
  Tensor cdf = 0.5 * (1.0 + ir::Erf(x * M_SQRT1_2));
  Tensor pdf = ir::Exp(x * x * -0.5) * (M_2_SQRTPI * M_SQRT1_2 * 0.5);
  return dy * (cdf + x * pdf);
}

Result Silu(AtenCall& c) {
  Tensor x = In(c, 0);
  return x / (1.0 + ir::Exp(-x));
}
Result SiluBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  Tensor s = ir::Logistic(x);
  return dy * s * (1.0 + x * (1.0 - s));
}

// threshold(x, t, v): x where x > t (or x is NaN), else v.
Result Threshold(AtenCall& c) {
  Tensor x = c.x(0);
  return ir::Select(x <= c.as(1, c.compute()), c.x(2), x);
}
Result ThresholdBackward(AtenCall& c) {
  Tensor dy = c.x(0), x = c.x(1);
  return ir::Select(x <= c.as(2, c.compute()), 0, dy);
}

Result Elu(AtenCall& c) {
  Tensor x = In(c, 0), alpha = In(c, 1, 1), scale = In(c, 2, 1), input_scale = In(c, 3, 1);
  return ir::Select(x <= 0, ir::Expm1(x * input_scale) * (alpha * scale), x * scale);
}
Result EluBackward(AtenCall& c) {  // (dy, alpha, scale, input_scale, is_result, self_or_result)
  Tensor dy = In(c, 0), alpha = In(c, 1), scale = In(c, 2), input_scale = In(c, 3), y = In(c, 5);
  Tensor slope =
      c.boolean(4) ? input_scale * (y + alpha * scale) : input_scale * (alpha * scale) * ir::Exp(y * input_scale);
  return ir::Select(y <= 0, dy * slope, dy * scale);
}

Result Softplus(AtenCall& c) {
  Tensor x = In(c, 0), beta = In(c, 1, 1), threshold = In(c, 2, 20);
  Tensor z = x * beta;
  return ir::Select(z > threshold, x, ir::Log1p(ir::Exp(z)) / beta);
}
Result SoftplusBackward(AtenCall& c) {
  Tensor dy = In(c, 0), z = In(c, 1) * In(c, 2), e = ir::Exp(z);
  return ir::Select(z > In(c, 3), dy, dy * e / (e + 1.0));
}

Result Hardtanh(AtenCall& c) { return ir::Min(ir::Max(c.x(0), c.as(1, c.compute(), -1)), c.as(2, c.compute(), 1)); }
Result HardtanhBackward(AtenCall& c) {
  Tensor x = c.x(1);
  return ir::Select((x <= c.x(2)) | (x >= c.x(3)), 0, c.x(0));
}

Tensor Relu6(Tensor x) { return ir::Min(ir::Max(x, 0), 6); }

Result HardswishBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  return ir::Select(x <= -3, 0, ir::Select(x < 3, dy * (x / 3 + 0.5), dy));
}
Result HardsigmoidBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  return ir::Select((x > -3) & (x < 3), dy * (1.0 / 6), 0);
}

Result LogSigmoid(AtenCall& c) {
  Tensor x = In(c, 0);
  Tensor y = ir::Min(x, 0) - ir::Log1p(ir::Exp(-ir::Abs(x)));
  if (c.num_results() == 1) return y;
  Tensor buffer = ir::Exp(-ir::Abs(x));
  bool empty = c.result_dims(1) != x.dims();
  return {y, empty ? c.emitter().Constant(x.dtype(), 0, c.result_dims(1)) : buffer};
}
Result LogSigmoidBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  Tensor z = ir::Exp(-ir::Abs(x));
  Tensor below = x < 0;
  Tensor deepest = ir::Select(below, x.emitter().Constant(x.dtype(), 1), 0);
  Tensor sign = ir::Select(below, x.emitter().Constant(x.dtype(), 1), -1);
  return dy * (deepest - sign * (z / (1.0 + z)));
}

Tensor Mish(Tensor x) { return x * ir::Tanh(ir::Log1p(ir::Exp(x))); }
Result MishBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  Tensor s = ir::Logistic(x), t = ir::Tanh(ir::Log1p(ir::Exp(x)));
  return dy * (t + x * s * (1.0 - t * t));
}

Result Softshrink(AtenCall& c) {
  Tensor x = In(c, 0), lambda = In(c, 1, 0.5);
  Tensor outside = ir::Select(x > lambda, x - lambda, ir::Select(x < -lambda, x + lambda, 0));
  return ir::Select(IsNan(x), x, outside);
}
Result Hardshrink(AtenCall& c) {
  Tensor x = In(c, 0), lambda = c.has(1) ? c.x(1) : In(c, 1, 0.5);
  return ir::Select((x >= -lambda) & (x <= lambda), 0, x);
}
Result ShrinkBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1), lambda = c.x(2);
  return ir::Select((x >= -lambda) & (x <= lambda), 0, dy);
}

std::pair<Tensor, Tensor> Halves(Tensor x, int64_t dim) {
  int64_t half = x.size(dim) / 2;
  return {ir::SliceDim(x, dim, 0, half), ir::SliceDim(x, dim, half, 2 * half)};
}
Result Glu(AtenCall& c) {
  Tensor x = In(c, 0);
  auto [a, b] = Halves(x, c.dim(1, x.rank(), -1));
  return a * ir::Logistic(b);
}
Result GluBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  int64_t dim = c.dim(2, x.rank(), -1);
  auto [a, b] = Halves(x, dim);
  Tensor s = ir::Logistic(b);
  Tensor da = dy * s;
  return ir::Concat({da, da * (1.0 - s) * a}, dim);
}

Result LeakyRelu(AtenCall& c) {
  Tensor x = In(c, 0);
  return ir::Select(x > 0, x, x * In(c, 1, 0.01));
}
Result LeakyReluBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  return ir::Select(x > 0, dy, dy * In(c, 2));
}
Result PreluKernel(AtenCall& c) {
  Tensor x = In(c, 0);
  return ir::Select(x > 0, x, x * In(c, 1));
}
Result PreluKernelBackward(AtenCall& c) {  // the weight's gradient is summed by PyTorch
  Tensor dy = In(c, 0), x = In(c, 1), weight = In(c, 2);
  return {ir::Select(x > 0, dy, dy * weight), ir::Select(x > 0, 0, x * dy)};
}

Result LogitBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  Tensor inside = dy / (x * (1.0 - x));
  if (c.has(2)) {
    Tensor low = In(c, 2), high = 1.0 - low;
    return ir::Select((x < low) | (x > high), 0, inside);
  }
  return ir::Select((x < 0) | (x > 1), std::nan(""), inside);
}

}  // namespace

void RegisterActivation(Registry& r) {
  r.Add("aten::relu", [](AtenCall& c) -> Result { return ir::Max(c.x(0), 0); });
  r.Add("aten::gelu", Gelu);
  r.Add("aten::gelu_backward", GeluBackward);
  r.Add("aten::silu", Silu);
  r.Add("aten::silu_backward", SiluBackward);
  r.Add("aten::threshold", Threshold);
  r.Add("aten::threshold_backward", ThresholdBackward);
  r.Add("aten::sigmoid_backward", [](AtenCall& c) -> Result {
    Tensor y = In(c, 1);
    return In(c, 0) * (1.0 - y) * y;
  });
  r.Add("aten::tanh_backward", [](AtenCall& c) -> Result {
    Tensor y = In(c, 1);
    return In(c, 0) * (1.0 - y * y);
  });
  r.Add("aten::leaky_relu", LeakyRelu);
  // PyTorch refuses some numbers: of what was written over its input.
  r.Add("aten::leaky_relu_backward", LeakyReluBackward, kStaticScalars);
  r.Add("aten::_prelu_kernel", PreluKernel);
  r.Add("aten::_prelu_kernel_backward", PreluKernelBackward);
  r.Add("aten::elu", Elu);
  r.Add("aten::elu_backward", EluBackward, kStaticScalars);
  r.Add("aten::celu", [](AtenCall& c) -> Result {
    Tensor x = In(c, 0), alpha = In(c, 1, 1);
    return ir::Select(x <= 0, ir::Expm1(x / alpha) * alpha, x);
  });
  r.Add("aten::softplus", Softplus);
  r.Add("aten::softplus_backward", SoftplusBackward);
  r.Add("aten::hardtanh", Hardtanh);
  r.Add("aten::hardtanh_backward", HardtanhBackward);
  r.Add("aten::hardswish", [](AtenCall& c) -> Result {
    Tensor x = In(c, 0);
    return x * Relu6(x + 3) * (1.0 / 6);
  });
  r.Add("aten::hardswish_backward", HardswishBackward);
  r.Add("aten::hardsigmoid", [](AtenCall& c) -> Result { return Relu6(In(c, 0) + 3) * (1.0 / 6); });
  r.Add("aten::hardsigmoid_backward", HardsigmoidBackward);
  r.Add("aten::log_sigmoid_forward", LogSigmoid);
  r.Add("aten::log_sigmoid_backward", LogSigmoidBackward);
  r.Add("aten::mish", [](AtenCall& c) -> Result { return Mish(In(c, 0)); });
  r.Add("aten::mish_backward", MishBackward);
  r.Add("aten::softshrink", Softshrink);
  r.Add("aten::hardshrink", Hardshrink);
  r.Add({"aten::softshrink_backward", "aten::hardshrink_backward"}, ShrinkBackward);
  r.Add("aten::glu", Glu);
  r.Add("aten::glu_backward", GluBackward);
  r.Add("aten::logit_backward", LogitBackward);
}

}  // namespace tpu::aten
