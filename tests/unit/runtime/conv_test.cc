// Convolutions by panels against plain loops in f64.
#include "runtime/host/conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/host/matrix_library.h"
#include "runtime/host/narrow_float.h"
#include "tests/unit/runtime/plain_sgemm.h"

namespace tpu::host {
namespace {

template <typename T>
std::vector<T> Numbers(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<T> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<T>(normal(random)));
  return numbers;
}

// The thread sanitizer would follow each of thousands of millions of reads of what is expected.
#define UNFOLLOWED __attribute__((no_sanitize("thread")))

// Calls use(of x, of w, of y) with the elements of each product.
template <typename Use>
UNFOLLOWED void ForProducts(const ConvStep& c, const Use& use) {
  const int64_t in = c.in / c.groups, out = c.out / c.groups;
  for (int64_t n = 0; n < c.batch; ++n) {
    for (int64_t o = 0; o < c.out; ++o) {
      for (int64_t p = 0; p < c.rows.out; ++p) {
        for (int64_t q = 0; q < c.cols.out; ++q) {
          for (int64_t r = 0; r < c.rows.kernel; ++r) {
            for (int64_t s = 0; s < c.cols.kernel; ++s) {
              const int64_t place_row = p * c.rows.stride + r * c.rows.dilation - c.rows.low;
              const int64_t place_col = q * c.cols.stride + s * c.cols.dilation - c.cols.low;
              if (place_row % c.rows.spread != 0 || place_col % c.cols.spread != 0) continue;
              const int64_t row = place_row / c.rows.spread, col = place_col / c.cols.spread;
              if (row < 0 || row >= c.rows.in || col < 0 || col >= c.cols.in) continue;
              int64_t at_x = ((n * c.in + o / out * in) * c.rows.in + row) * c.cols.in + col;
              int64_t at_w = (o * in * c.rows.kernel + r) * c.cols.kernel + s;
              const int64_t at_y = ((n * c.out + o) * c.rows.out + p) * c.cols.out + q;
              for (int64_t i = 0; i < in; ++i) {
                use(at_x, at_w, at_y);
                at_x += c.rows.in * c.cols.in;
                at_w += c.rows.kernel * c.cols.kernel;
              }
            }
          }
        }
      }
    }
  }
}

template <typename T>
void Compare(ConvStep c, ConvStep::Kind kind, std::mt19937& random) {
  c.kind = kind;
  c.dtype = std::is_same_v<T, float> ? DType::kFloat32 : DType::kBFloat16;
  if (!CanConvolve(c)) GTEST_SKIP() << "no step, or this processor has no panels for " << NameOf(c.dtype);
  const bool forward = kind == ConvStep::Kind::kForward;
  const int64_t of_y = c.batch * c.out * c.rows.out * c.cols.out,
                of_w = c.out * (c.in / c.groups) * c.rows.kernel * c.cols.kernel;
  const auto x = Numbers<T>(c.batch * c.in * c.rows.in * c.cols.in, random);
  const auto other = Numbers<T>(forward ? of_w : of_y, random);
  const size_t results = static_cast<size_t>(forward ? of_y : of_w);
  std::vector<double> expected(results), sizes(results);
  const auto widened = [](const std::vector<T>& narrow) {
    std::vector<double> wide;
    for (const T& number : narrow) wide.push_back(static_cast<double>(static_cast<float>(number)));
    return wide;
  };
  const auto wide_x = widened(x), wide_other = widened(other);
  const double *xs = wide_x.data(), *others = wide_other.data();
  double *sum = expected.data(), *size = sizes.data();
  ForProducts(c, [=](int64_t at_x, int64_t at_w, int64_t at_y) UNFOLLOWED {
    const double product = xs[at_x] * others[forward ? at_w : at_y];
    sum[forward ? at_y : at_w] += product;
    size[forward ? at_y : at_w] += std::abs(product);
  });
  std::vector<float> found(results, NAN);
  RunConv(c, x.data(), other.data(), found.data());
  for (size_t i = 0; i < results; ++i) {
    ASSERT_NEAR(found[i], expected[i], 1e-6 * sizes[i] + 1e-6)
        << (forward ? "forward, element " : "of the weight, element ") << i << " of batch " << c.batch << ", " << c.in
        << " to " << c.out << " channels in " << c.groups << " groups, " << c.rows.in << " x " << c.cols.in
        << ", window " << c.rows.kernel << " x " << c.cols.kernel;
  }
  std::vector<float> again(results, NAN);
  RunConv(c, x.data(), other.data(), again.data());
  EXPECT_EQ(found, again);
}

int64_t Outputs(const ConvStep::Dim& d, int64_t high) {
  return (d.low + (d.in - 1) * d.spread + 1 + high - ((d.kernel - 1) * d.dilation + 1)) / d.stride + 1;
}

struct Case {
  std::string name;
  int64_t batch, in, out, rows, cols, kernel, stride = 1, dilation = 1, low = 0, high = 0, spread = 1, groups = 1;
};

const Case kCases[] = {
    {"three by three", 2, 32, 16, 16, 32, 3, 1, 1, 1, 1},
    {"three by three, odd", 3, 20, 35, 17, 29, 3, 1, 1, 1, 1},
    {"three by three, more padding", 2, 17, 24, 18, 31, 3, 1, 1, 5, 7},
    {"three by three, less than the image", 2, 24, 17, 35, 37, 3, 1, 1, -2, -3},
    {"three by three, many channels", 2, 140, 150, 20, 20, 3, 1, 1, 1, 1},
    {"three by three, narrow and high", 1, 16, 16, 90, 10, 3, 1, 1, 1, 1},
    {"few channels", 2, 3, 8, 20, 64, 3, 1, 1, 1, 1},
    {"few results", 3, 8, 3, 16, 16, 1},
    {"odd sizes", 3, 5, 13, 11, 29, 3, 1, 1, 1, 1},
    {"small images together", 7, 24, 40, 4, 4, 3, 1, 1, 1, 1},
    {"more weight than image", 5, 64, 72, 2, 2, 3, 1, 1, 1, 1},
    {"more weight than image, few results", 1, 64, 5, 2, 2, 3, 1, 1, 1, 1},
    {"one position", 9, 16, 24, 5, 5, 5},
    {"stride", 2, 16, 24, 17, 32, 3, 2, 1, 1, 1},
    {"stride over one tap", 2, 16, 24, 16, 16, 1, 2},
    {"stride beyond the window", 2, 8, 8, 19, 23, 2, 3},
    {"dilation", 1, 8, 16, 21, 40, 3, 1, 4, 4, 4},
    {"dilation and stride", 2, 8, 16, 21, 40, 3, 2, 3, 2, 5},
    {"more padding than image", 2, 8, 8, 3, 5, 3, 1, 1, 7, 6},
    {"padding that leaves out", 2, 8, 8, 16, 16, 3, 1, 1, -2, -3},
    {"deep", 2, 130, 9, 6, 8, 3, 1, 1, 1, 1},
    {"deep and large", 1, 130, 9, 20, 18, 3, 1, 1, 1, 1},
    {"one image of many rows", 1, 64, 8, 70, 66, 3, 1, 1, 1, 1},
    {"patches", 3, 3, 20, 24, 33, 4, 4},
    {"patches of few positions", 3, 9, 40, 9, 11, 3, 3},
    {"patches of few positions and results", 4, 40, 3, 8, 8, 2, 2},
    {"patches with gaps", 2, 8, 16, 23, 26, 2, 4, 3},
    {"one tap and few positions", 5, 40, 48, 5, 5, 1},
    {"few channels and a stride", 3, 3, 17, 33, 34, 3, 2, 1, 1, 1},
    {"wide window", 1, 4, 8, 24, 24, 7, 2, 1, 3, 3},
    {"small images of a small batch", 3, 24, 40, 7, 9, 3, 1, 1, 1, 1},
    {"one small image, many results", 1, 20, 150, 7, 7, 3, 1, 1, 1, 1},
    {"few tiny images, many results", 5, 20, 75, 2, 3, 3, 1, 1, 1, 1},
    {"images of two blocks", 35, 6, 12, 5, 4, 3, 1, 1, 1, 1},
    {"images of three blocks", 67, 6, 12, 3, 4, 3, 1, 1, 1, 1},
    {"small images and a stride", 16, 40, 24, 8, 8, 3, 2, 1, 1, 1},
    {"small images that taps leave", 4, 8, 8, 2, 3, 3, 1, 3, 3, 3},
    {"spread", 2, 16, 24, 9, 16, 3, 1, 1, 1, 2, 2},
    {"spread over one tap", 2, 16, 24, 8, 8, 1, 1, 1, 0, 1, 2},
    {"spread by the window", 3, 20, 9, 10, 12, 4, 1, 1, 3, 3, 4},
    {"spread by more than the window", 3, 9, 20, 5, 4, 3, 1, 1, 2, 9, 7},
    {"spread by sixteen", 2, 24, 3, 14, 14, 16, 1, 1, 15, 15, 16},
    {"spread and dilation", 2, 40, 30, 9, 11, 3, 1, 3, 4, 5, 2},
    {"spread, padding that leaves out", 2, 8, 16, 9, 9, 3, 1, 1, -2, -3, 2},
    {"spread, dilation and stride", 3, 6, 9, 11, 12, 3, 2, 2, 3, 1, 3},
    {"each channel", 3, 20, 20, 16, 16, 3, 1, 1, 1, 1, 1, 20},
    {"each channel, stride", 3, 20, 20, 16, 17, 3, 2, 1, 1, 1, 1, 20},
    {"each channel, five by five", 2, 9, 9, 14, 15, 5, 1, 1, 2, 2, 1, 9},
    {"each channel, five by five and stride", 2, 9, 9, 15, 40, 5, 2, 1, 2, 2, 1, 9},
    {"each channel, seven by seven", 3, 20, 20, 16, 16, 7, 1, 1, 3, 3, 1, 20},
    {"each channel, seven by seven of half", 3, 20, 20, 8, 8, 7, 1, 1, 3, 3, 1, 20},
    {"each channel, seven by seven of a quarter", 5, 20, 20, 4, 4, 7, 1, 1, 3, 3, 1, 20},
    {"each channel, seven by seven of few positions", 20, 20, 20, 2, 2, 7, 1, 1, 3, 3, 1, 20},
    {"each channel, one position", 5, 20, 20, 7, 7, 7, 1, 1, 0, 0, 1, 20},
    {"each channel, one tap", 5, 20, 20, 7, 9, 1, 1, 1, 0, 0, 1, 20},
    {"each channel of images larger than a strip", 2, 4, 4, 80, 90, 3, 1, 1, 1, 1, 1, 4},
    {"each channel many times", 3, 5, 35, 9, 9, 3, 1, 1, 1, 1, 1, 5},
    {"groups", 3, 24, 24, 14, 14, 3, 1, 1, 1, 1, 1, 3},
    {"groups and stride", 3, 24, 24, 15, 14, 3, 2, 1, 1, 1, 1, 3},
    {"groups of other sizes", 3, 18, 12, 7, 14, 3, 1, 1, 1, 1, 1, 6},
    {"groups and dilation", 2, 8, 8, 21, 20, 3, 1, 4, 4, 4, 1, 2},
    {"groups, dilation and stride", 2, 8, 8, 21, 40, 3, 3, 2, 2, 5, 1, 4},
    {"groups, stride beyond the window", 2, 8, 8, 19, 23, 2, 3, 1, 0, 0, 1, 4},
    {"groups, more padding than image", 2, 8, 8, 3, 5, 3, 1, 1, 7, 6, 1, 4},
    {"groups, padding that leaves out", 2, 8, 8, 16, 16, 3, 1, 1, -2, -3, 1, 4},
    {"groups, padding alone", 2, 8, 8, 3, 3, 1, 5, 1, 2, 3, 1, 4},
    {"groups, spread", 3, 8, 8, 9, 16, 3, 1, 1, 1, 2, 2, 4},
    {"each channel, spread", 3, 20, 20, 4, 4, 5, 1, 1, 2, 3, 2, 20},
    {"groups, spread and dilation", 3, 8, 8, 9, 16, 3, 1, 2, 4, 3, 3, 4},
    {"groups of many channels", 3, 64, 96, 11, 15, 3, 1, 1, 1, 1, 1, 2},
    {"groups of many channels, stride", 2, 195, 60, 15, 14, 3, 2, 1, 1, 1, 1, 3},
    {"groups of many channels, spread", 2, 64, 50, 9, 8, 3, 1, 1, 1, 2, 2, 2},
    {"groups of many channels and few positions", 3, 64, 64, 7, 7, 3, 1, 1, 1, 1, 1, 2},
    {"groups of many channels, one image and tap", 1, 64, 64, 12, 12, 1, 1, 1, 0, 0, 1, 2},
    {"groups, spread over one tap", 3, 8, 8, 9, 16, 1, 1, 1, 0, 1, 2, 4},
};

class ConvolutionsOf : public testing::TestWithParam<Case> {
 protected:
  ConvStep step() const {
    const Case& at = GetParam();
    ConvStep c{.batch = at.batch, .in = at.in, .out = at.out, .groups = at.groups};
    c.rows = {.in = at.rows, .kernel = at.kernel, .stride = at.stride, .dilation = at.dilation, .low = at.low};
    c.rows.spread = at.spread;
    c.cols = c.rows;
    c.cols.in = at.cols;
    c.rows.out = Outputs(c.rows, at.high), c.cols.out = Outputs(c.cols, at.high);
    return c;
  }
  std::mt19937 random_{1};
};

TEST_P(ConvolutionsOf, Forward) { Compare<float>(step(), ConvStep::Kind::kForward, random_); }
TEST_P(ConvolutionsOf, OfTheWeight) { Compare<float>(step(), ConvStep::Kind::kWeight, random_); }
TEST_P(ConvolutionsOf, ForwardOfBFloat16) { Compare<BFloat16>(step(), ConvStep::Kind::kForward, random_); }
TEST_P(ConvolutionsOf, OfTheWeightOfBFloat16) { Compare<BFloat16>(step(), ConvStep::Kind::kWeight, random_); }

INSTANTIATE_TEST_SUITE_P(Sizes, ConvolutionsOf, testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalpha(c) != 0 ? c : '_';
  return name;
});

// Windows of one element, beside a matrix library: products of matrices on Intel's processors.
TEST(Convolutions, OfOneElementBesideALibrary) {
  SetMatrixLibrary({.name = "plain", .sgemm = PlainSgemm});
  std::mt19937 random(5);
  const auto drawn = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int i = 0; i < 100; ++i) {
    ConvStep c{.batch = drawn(1, 7), .in = drawn(1, 80), .out = drawn(1, 80)};
    for (ConvStep::Dim* d : {&c.rows, &c.cols}) {
      d->in = d->out = drawn(1, 15);
      d->kernel = 1;
    }
    for (const auto kind : {ConvStep::Kind::kForward, ConvStep::Kind::kWeight}) {
      Compare<float>(c, kind, random);
      c.dtype = DType::kBFloat16;
      if (CanConvolve(c)) Compare<BFloat16>(c, kind, random);
    }
    if (HasFatalFailure() || IsSkipped()) break;
  }
  SetMatrixLibrary({});
}

// What is not finite is so where it is seen, and nowhere else.
TEST(Convolutions, OfWhatIsNotFinite) {
  std::mt19937 random(3);
  ConvStep c{.dtype = DType::kFloat32, .batch = 2, .in = 16, .out = 16};
  c.rows = {.in = 24, .out = 24, .kernel = 3, .low = 1};
  c.cols = c.rows;
  if (!CanConvolve(c)) GTEST_SKIP() << "this processor has no panels";
  auto x = Numbers<float>(c.batch * c.in * 24 * 24, random);
  const auto w = Numbers<float>(c.out * c.in * 9, random);
  x[10 * 24 + 7] = INFINITY;
  x[2000] = NAN;
  x[9000] = 3e38f;
  std::vector<double> expected(static_cast<size_t>(c.batch * c.out * 24 * 24));
  ForProducts(c, [&](int64_t at_x, int64_t at_w, int64_t at_y) { expected[at_y] += double{x[at_x]} * w[at_w]; });
  std::vector<float> found(expected.size());
  RunConv(c, x.data(), w.data(), found.data());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::isnan(found[i]), std::isnan(expected[i])) << i;
    ASSERT_EQ(std::isinf(found[i]), std::isinf(static_cast<float>(expected[i]))) << i;
  }
}

TEST(Convolutions, OfRandomSizes) {
  std::mt19937 random(7);
  const auto drawn = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int i = 0; i < 100; ++i) {
    ConvStep c{.batch = drawn(1, 4) == 4 ? drawn(30, 40) : drawn(1, 5), .in = drawn(1, 40), .out = drawn(1, 40)};
    for (ConvStep::Dim* d : {&c.rows, &c.cols}) {
      *d = {.in = drawn(1, 20),
            .kernel = drawn(1, 4),
            .stride = drawn(1, 3),
            .dilation = drawn(1, 3),
            .low = drawn(-2, 5),
            .spread = drawn(1, 4) == 4 ? drawn(2, 3) : 1};
      d->out = std::max<int64_t>(1, Outputs(*d, drawn(-2, 5)));
    }
    for (const auto kind : {ConvStep::Kind::kForward, ConvStep::Kind::kWeight}) {
      Compare<float>(c, kind, random);
      c.dtype = DType::kBFloat16;
      if (CanConvolve(c)) Compare<BFloat16>(c, kind, random);
      if (HasFatalFailure() || IsSkipped()) return;
    }
  }
}

TEST(Convolutions, InGroupsOfRandomSizes) {
  std::mt19937 random(7);
  const auto drawn = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int i = 0; i < 300; ++i) {
    const int64_t groups = drawn(2, 9);
    ConvStep c{.batch = drawn(1, 9), .in = groups * drawn(1, 3), .out = groups * drawn(1, 6), .groups = groups};
    for (ConvStep::Dim* d : {&c.rows, &c.cols}) {
      *d = {.in = drawn(1, 24), .kernel = drawn(1, 5), .dilation = drawn(1, 4), .low = drawn(-2, 7)};
      (drawn(0, 1) == 0 ? d->stride : d->spread) = drawn(1, 4);
      d->out = std::max<int64_t>(1, Outputs(*d, drawn(-2, 5)));
    }
    for (const auto kind : {ConvStep::Kind::kForward, ConvStep::Kind::kWeight}) {
      if (kind == ConvStep::Kind::kWeight) c.rows.spread = c.cols.spread = 1;
      Compare<float>(c, kind, random);
      c.dtype = DType::kBFloat16;
      if (CanConvolve(c)) Compare<BFloat16>(c, kind, random);
      if (HasFatalFailure() || IsSkipped()) return;
    }
  }
}

// What isn't there, such as padding and the second of a pair, adds nothing to what an infinity doesn't reach.
TEST(Convolutions, KeepInfinitiesApart) {
  for (const int64_t size : {6, 18}) {
    ConvStep c{.batch = 3, .in = 5, .out = 7};
    c.rows = c.cols = {.in = size, .out = size, .kernel = 3, .low = 1};
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      c.dtype = dtype;
      if (!CanConvolve(c)) continue;
      const auto compare = [&](const auto one) {
        using T = std::remove_const_t<decltype(one)>;
        std::vector<T> x(3 * 5 * size * size, one), w(5 * 7 * 9, one), y(3 * 7 * size * size, one);
        x.back() = static_cast<T>(INFINITY);
        std::vector<bool> reached_y(y.size()), reached_w(w.size());
        ForProducts(c, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
          if (at_x == static_cast<int64_t>(x.size()) - 1) reached_y[at_y] = reached_w[at_w] = true;
        });
        std::vector<float> got_y(y.size()), got_w(w.size());
        c.kind = ConvStep::Kind::kForward;
        RunConv(c, x.data(), w.data(), got_y.data());
        c.kind = ConvStep::Kind::kWeight;
        RunConv(c, x.data(), y.data(), got_w.data());
        for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(got_y[i] == INFINITY, reached_y[i]) << got_y[i] << " " << i;
        for (size_t i = 0; i < w.size(); ++i) ASSERT_EQ(got_w[i] == INFINITY, reached_w[i]) << got_w[i] << " " << i;
      };
      dtype == DType::kFloat32 ? compare(1.0f) : compare(static_cast<BFloat16>(1.0f));
    }
  }
}

TEST(CanConvolve, RefusesGroups) {
  ConvStep c{.batch = 1, .in = 8, .out = 8, .groups = 2};
  c.rows = c.cols = {.in = 8, .out = 8, .kernel = 3, .low = 1};
  if (!CanConvolve(c)) GTEST_SKIP() << "this processor has no panels";
  const std::pair<const char*, void (*)(ConvStep&)> changes[] = {
      {"none", [](ConvStep& s) { s.groups = 0; }},
      {"that do not divide x's channels", [](ConvStep& s) { s.in = 9; }},
      {"that do not divide y's channels", [](ConvStep& s) { s.out = 7; }},
      {"of many products", [](ConvStep& s) { s.rows.kernel = s.cols.kernel = 1 << 7; }},
      {"of many phases", [](ConvStep& s) { s.rows.stride = 1 << 9; }},
      {"spread and strided", [](ConvStep& s) { s.rows.stride = s.rows.spread = 2; }},
      {"spread, of the weight", [](ConvStep& s) { s.kind = ConvStep::Kind::kWeight, s.cols.spread = 2; }},
      {"of planes beyond memory",
       [](ConvStep& s) { s.rows.stride = s.cols.stride = 200, s.rows.out = s.cols.out = 1 << 10; }},
  };
  for (const auto& [what, change] : changes) {
    ConvStep changed = c;
    change(changed);
    EXPECT_FALSE(CanConvolve(changed)) << what;
  }
  c.in = 1 << 10;  // each group is a convolution of its own
  EXPECT_TRUE(CanConvolve(c));
}

TEST(CanConvolve, RefusesWhatOffsetsCannotSay) {
  ConvStep c{.batch = 1, .in = 1 << 14, .out = 8};
  c.rows = c.cols = {.in = 512, .out = 512};
  EXPECT_FALSE(CanConvolve(c));
  c.in = 0;
  EXPECT_FALSE(CanConvolve(c));
  c.in = 8, c.rows.in = -1;
  EXPECT_FALSE(CanConvolve(c));
  // Tables of offsets for every position would be larger than the images.
  c.rows = c.cols = {.in = 1 << 9, .out = 1 << 10, .kernel = 1 << 9, .spread = 2};
  EXPECT_FALSE(CanConvolve(c));
  c = {.batch = 1, .in = 1 << 28, .out = 1};
  c.rows.spread = c.rows.stride = 2;
  EXPECT_FALSE(CanConvolve(c));
  c = {.batch = 1, .in = 8, .out = 8};
  c.rows = c.cols = {.in = 64, .out = 64};
  c.rows.in = 512, c.dtype = DType::kFloat64;
  EXPECT_FALSE(CanConvolve(c));
}

}  // namespace
}  // namespace tpu::host
