// Fourier transforms, for devices that have them: where host kernels run in place, a library's do.
#include <cmath>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

using ir::FftKind;

// `transform` of x with `dims` (distinct) last, and back where they were.
template <typename F>
Tensor AtTheEnd(Tensor x, Ints dims, F transform) {
  Shape sorted(dims);
  llvm::sort(sorted);
  Shape order = OtherDims(x.rank(), sorted), back(order.size() + dims.size());
  order.append(dims.begin(), dims.end());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  return ir::Transpose(transform(ir::Transpose(x, order)), back);
}

// Of complex numbers over `dims`, which are independent: three at once.
Tensor Transformed(FftKind kind, Tensor x, Ints dims) {
  while (!dims.empty()) {
    const Ints some = dims.take_front(3);
    x = AtTheEnd(x, some, [&](Tensor y) { return ir::Fft(kind, y, y.dims().take_back(some.size())); });
    dims = dims.drop_front(some.size());
  }
  return x;
}

Tensor Scaled(Tensor x, double factor) {
  if (factor == 1) return x;
  return IsComplex(x.dtype()) ? ir::Complex(ir::Real(x) * factor, ir::Imaginary(x) * factor) : x * factor;
}

// at::native::fft_norm_mode of a transform of n elements in all.
double Factor(AtenCall& c, int64_t n) {
  const int64_t mode = c.integer(2);
  return mode == 0 ? 1 : mode == 1 ? 1 / std::sqrt(double(n)) : 1 / double(n);
}

Result ComplexToComplex(AtenCall& c) {  // (x, dims, normalization, forward)
  const Tensor x = c.tensor(0);
  const Shape dims = c.ints(1);
  const int64_t n = CountAlong(x, dims);
  if (x.elements() == 0) return Result::Decline();
  const bool forward = c.boolean(3);
  return Scaled(Transformed(forward ? FftKind::forward : FftKind::inverse, x, dims),
                Factor(c, n) * (forward ? 1 : double(n)));
}

Result RealToComplex(AtenCall& c) {  // (x, dims, normalization, onesided): of the last of the dims half, if onesided
  Tensor x = c.tensor(0);
  const Shape dims = c.ints(1);
  const double factor = Factor(c, CountAlong(x, dims));
  if (x.elements() == 0) return Result::Decline();
  if (!c.boolean(3)) return Scaled(Transformed(FftKind::forward, ir::Convert(x, c.result_dtype()), dims), factor);
  x = AtTheEnd(x, {dims.back()}, [](Tensor y) { return ir::Fft(FftKind::from_real, y, {y.size(-1)}); });
  return Scaled(Transformed(FftKind::forward, x, Ints(dims).drop_back()), factor);
}

Result ComplexToReal(AtenCall& c) {  // (x, dims, normalization, the last dim's size)
  Tensor x = c.tensor(0);
  const Shape dims = c.ints(1);
  const int64_t last = c.integer(3), n = CountAlong(x, Ints(dims).drop_back()) * last;
  if (x.elements() == 0 || x.size(dims.back()) != last / 2 + 1) return Result::Decline();
  x = Transformed(FftKind::inverse, x, Ints(dims).drop_back());
  x = AtTheEnd(x, {dims.back()}, [&](Tensor y) { return ir::Fft(FftKind::to_real, y, {last}); });
  return Scaled(x, Factor(c, n) * double(n));
}

}  // namespace

void RegisterFft(Registry& r) {
  r.Add("aten::_fft_c2c", ComplexToComplex, kAnyElement | kHostKernelFirst);
  r.Add("aten::_fft_r2c", RealToComplex, kAnyElement | kHostKernelFirst);
  r.Add("aten::_fft_c2r", ComplexToReal, kAnyElement | kHostKernelFirst);
}

}  // namespace tpu::aten
