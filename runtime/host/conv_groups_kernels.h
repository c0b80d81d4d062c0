// The loops of conv_groups.cc. Included there for each instruction set (each_instruction_set.h).

constexpr int kWideAlone = 8, kWideTogether = kLanes == 16 ? 4 : 2;  // registers of positions, for one channel or kOuts
// Terms whose sums over positions are made at once.
constexpr int kTermsAlone = kLanes == 16 ? 13 : 12, kTermsTogether = kLanes == 16 ? 6 : 2;

// A row of a strip, by whole registers: the zeros behind it lie where it has zeros, or where a later row will be.
template <typename T>
TPU_LANES TPU_INLINE void CopyRow(const T* from, int64_t count, float* to) {
  for (int64_t q = 0; q < count; q += kLanes) Store(to + q, LoadFirst(from + q, count - q));
}

// Every other element, from the first on and from the second on; at most `most` of each.
template <typename T>
TPU_LANES TPU_INLINE void DealRow(const T* from, int64_t count, int64_t most, float* even, float* odd) {
  for (int64_t q = 0; q < std::min(count, 2 * most); q += 2 * kLanes) {
    const int64_t left = count - q;
    const Lanes low = LoadFirst(from + q, left);
    const Lanes high = left > kLanes ? LoadFirst(from + q + kLanes, left - kLanes) : Zeros();
    const int64_t of_each = most - q / 2;
    StoreFirst(even + q / 2, std::min((left + 1) / 2, of_each), Evens(low, high));
    StoreFirst(odd + q / 2, std::min(left / 2, of_each), Odds(low, high));
  }
}

// The other way round.
TPU_LANES TPU_INLINE void AlternateRow(const float* even, const float* odd, int64_t count, float* to) {
  for (int64_t q = 0; q < count; q += 2 * kLanes) {
    const int64_t left = count - q;
    const Lanes a = LoadFirst(even + q / 2, (left + 1) / 2), b = LoadFirst(odd + q / 2, left / 2);
    StoreFirst(to + q, left, AlternateFirst(a, b));
    StoreFirst(to + q + kLanes, left - kLanes, AlternateSecond(a, b));
  }
}

// The elements of a strip's planes; what lies between them is zero and stays so. x: the group's of the first image.
template <typename T>
TPU_LANES void Fill(const Strips& strips, const T* x, int64_t images, float* to) {
  const Axis &rows = strips.rows(), &cols = strips.cols();
  const int64_t last_row = std::min(rows.in, rows.kept * rows.planes);
  for (int64_t i = 0; i < strips.in(); ++i) {
    for (int64_t n = 0; n < images; ++n) {
      const T* const channel = x + (n * strips.channels() + i) * rows.in * cols.in;
      for (int64_t first = 0; first < rows.planes; ++first) {
        float* plane = to + strips.Plane(i, first, 0) + strips.At(n, 0);
        for (int64_t row = first; row < last_row; row += rows.planes, plane += cols.period) {
          const T* const from = channel + row * cols.in;
          if (cols.planes == 1) {
            CopyRow(from, cols.kept, plane);
          } else if (cols.planes == 2) {
            DealRow(from, cols.in, cols.kept, plane, plane + strips.plane());
          } else {
            for (int64_t col = 0; col < std::min(cols.in, cols.kept * cols.planes); ++col) {
              plane[col % cols.planes * strips.plane() + col / cols.planes] = static_cast<float>(from[col]);
            }
          }
        }
      }
    }
  }
}

// to[o][at[v]..] = sum over the terms of x[at[v] + offset..] * w[o][weight].
template <int kCount, int kWide>
TPU_LANES void SumTerms(const std::vector<Term>& terms, const int32_t* at, const float* x, const float* w,
                        int64_t w_stride, float* to, int64_t to_stride) {
  Lanes sums[kCount][kWide];
  const float* from[kWide];
#pragma GCC unroll 8
  for (int v = 0; v < kWide; ++v) {
    from[v] = x + at[v];
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) sums[o][v] = Zeros();
  }
  for (const Term& term : terms) {
    Lanes row[kWide];
#pragma GCC unroll 8
    for (int v = 0; v < kWide; ++v) row[v] = Load(from[v] + term.offset);
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) {
      const Lanes weight = Every(w[o * w_stride + term.weight]);
#pragma GCC unroll 8
      for (int v = 0; v < kWide; ++v) sums[o][v] = AddProduct(sums[o][v], row[v], weight);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kWide; ++v) {
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) Store(to + o * to_stride + at[v], sums[o][v]);
  }
}

template <int kCount>
void SumAllTerms(const std::vector<Term>& terms, const std::vector<int32_t>& at, const float* x, const float* w,
                 int64_t w_stride, float* to, int64_t to_stride) {
  constexpr int kWide = kCount == 1 ? kWideAlone : kWideTogether;
  const int32_t *from = at.data(), *const end = from + at.size();
  for (; end - from >= kWide; from += kWide) SumTerms<kCount, kWide>(terms, from, x, w, w_stride, to, to_stride);
  if (kWide > 4 && end - from >= 4) {
    SumTerms<kCount, 4>(terms, from, x, w, w_stride, to, to_stride);
    from += 4;
  }
  if (end - from >= 2) {
    SumTerms<kCount, 2>(terms, from, x, w, w_stride, to, to_stride);
    from += 2;
  }
  if (from != end) SumTerms<kCount, 1>(terms, from, x, w, w_stride, to, to_stride);
}

TPU_LANES TPU_INLINE float SumOfLanes(Lanes x) {
  alignas(64) float lanes[kLanes];
  Store(lanes, x);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// w[o][weight] += sum over the positions of x[position + offset] * y[o][position], for kTerms terms and kCount o. Lanes
// that are no positions are zeros on both sides.
template <int kTerms, int kCount>
TPU_LANES void SumPositions(const Term* terms, const Cover& cover, const float* x, const float* y, int64_t y_stride,
                            float* w, int64_t w_stride) {
  Lanes sums[kTerms][kCount];
  const float* from[kTerms];
#pragma GCC unroll 13
  for (int t = 0; t < kTerms; ++t) {
    from[t] = x + terms[t].offset;
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) sums[t][o] = Zeros();
  }
  for (size_t v = 0; v < cover.at.size(); ++v) {
    const int64_t at = cover.at[v];
    const Mask lanes = MaskOf(cover.lanes[v]);
    Lanes left[kCount];
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) left[o] = Load(y + o * y_stride + at, lanes);
#pragma GCC unroll 13
    for (int t = 0; t < kTerms; ++t) {
      const Lanes row = Load(from[t] + at, lanes);
#pragma GCC unroll 4
      for (int o = 0; o < kCount; ++o) sums[t][o] = AddProduct(sums[t][o], row, left[o]);
    }
  }
#pragma GCC unroll 13
  for (int t = 0; t < kTerms; ++t) {
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) w[o * w_stride + terms[t].weight] += SumOfLanes(sums[t][o]);
  }
}

// By blocks of terms that are as alike as can be.
template <int kCount>
void SumAllPositions(const std::vector<Term>& terms, const Cover& cover, const float* x, const float* y,
                     int64_t y_stride, float* w, int64_t w_stride) {
  constexpr int64_t kMost = kCount == 1 ? kTermsAlone : kTermsTogether;
  static constexpr auto kKernels = []<int... kTerms>(std::integer_sequence<int, kTerms...>) {
    return std::array{SumPositions<kTerms + 1, kCount>...};
  }(std::make_integer_sequence<int, kMost>());
  const int64_t count = static_cast<int64_t>(terms.size()), blocks = CeilDiv(count, kMost);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = count * b / blocks, size = count * (b + 1) / blocks - first;
    kKernels[static_cast<size_t>(size - 1)](terms.data() + first, cover, x, y, y_stride, w, w_stride);
  }
}

// A row of y: by whole registers where its later rows, or one behind them, are written after it.
TPU_LANES TPU_INLINE void WriteRow(const float* from, int64_t count, int64_t room, float* to) {
  for (int64_t q = 0; q < count; q += kLanes) {
    StoreFirst(to + q, room - q >= kLanes ? kLanes : count - q, Load(from + q));
  }
}

// The rows of a channel of y, from the sums of its phases.
TPU_LANES void WriteRows(const Strips& strips, const float* sums, int64_t stride, int64_t image, float* to) {
  const Axis &rows = strips.rows(), &cols = strips.cols();
  for (int64_t phase = 0; phase < rows.phases; ++phase) {
    const float* from = sums + phase * cols.phases * stride + strips.At(image, 0);
    for (int64_t row = phase; row < rows.out; row += rows.phases, from += cols.period) {
      float* const y = to + row * cols.out;
      if (cols.phases == 1) {
        WriteRow(from, cols.out, rows.phases == 1 ? (rows.out - row) * cols.out : cols.out, y);
      } else if (cols.phases == 2) {
        AlternateRow(from, from + stride, cols.out, y);
      } else {
        for (int64_t col = 0; col < cols.out; ++col) y[col] = from[col % cols.phases * stride + col / cols.phases];
      }
    }
  }
}

// A channel of an image of y, as its positions lie in a strip.
template <typename T>
TPU_LANES void LayOut(const Strips& strips, const T* y, int64_t image, float* to) {
  const int64_t cols = strips.cols().out;
  for (int64_t row = 0; row < strips.rows().out; ++row) CopyRow(y + row * cols, cols, to + strips.At(image, row));
}

// What runs them.
template <typename T>
constexpr Loops<T> kLoops{
    Fill<T>, WriteRows, LayOut<T>, {SumAllTerms<1>, SumAllTerms<kOuts>}, {SumAllPositions<1>, SumAllPositions<kOuts>}};
