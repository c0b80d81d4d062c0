// The transforms of conv_winograd.cc. Included there for each instruction set (each_instruction_set.h).

// G g G^T of windows g one after the other, a plane for each element.
TPU_LANES void TransformWeights(const float* windows, int64_t count, float* to, int64_t plane) {
  const Lanes half = Every(0.5f);
  const auto spread = [=](Lanes a, Lanes b, Lanes c, Lanes(&r)[kWindow]) TPU_LANES {
    const Lanes ends = a + c;
    r[0] = a;
    r[1] = half * (ends + b);
    r[2] = half * (ends - b);
    r[3] = c;
  };
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    alignas(64) float taps[kTaps][kLanes] = {};
    for (int64_t l = 0; l < lanes; ++l) {
      for (int64_t t = 0; t < kTaps; ++t) taps[t][l] = windows[(i + l) * kTaps + t];
    }
    Lanes rows[3][kWindow];
    for (int64_t s = 0; s < 3; ++s) spread(Load(taps[s]), Load(taps[3 + s]), Load(taps[6 + s]), rows[s]);
    for (int64_t r = 0; r < kWindow; ++r) {
      Lanes row[kWindow];
      spread(rows[0][r], rows[1][r], rows[2][r], row);
      for (int64_t s = 0; s < kWindow; ++s) StoreFirst(to + (r * kWindow + s) * plane + i, lanes, row[s]);
    }
  }
}

// Of four rows of an image, null where they are beyond it, from column `from` on: B^T d B of `count` tiles, a plane for
// each element.
TPU_LANES void TransformInput(const std::array<const float*, kWindow>& rows, int64_t from, int64_t width, int64_t count,
                              float* to, int64_t plane) {
  for (int64_t q = 0; q < count; q += kLanes) {
    const int64_t col = from + kTile * q;
    // Columns from `col` on, then those two further, a register and another.
    Lanes d[4][kWindow];
    for (int64_t part = 0; part < 4; ++part) {
      const int64_t at = col + part % 2 * kLanes + part / 2 * kTile;
      const Mask inside = MaskOf(BitsBetween(-at, width - at));
      Lanes x[kWindow];
      for (int64_t r = 0; r < kWindow; ++r) x[r] = rows[r] != nullptr ? Load(rows[r] + at, inside) : Zeros();
      d[part][0] = x[0] - x[2];
      d[part][1] = x[1] + x[2];
      d[part][2] = x[2] - x[1];
      d[part][3] = x[1] - x[3];
    }
    for (int64_t r = 0; r < kWindow; ++r) {
      const Lanes a = Evens(d[0][r], d[1][r]), b = Odds(d[0][r], d[1][r]);
      const Lanes c = Evens(d[2][r], d[3][r]), e = Odds(d[2][r], d[3][r]);
      float* const first = to + r * kWindow * plane + q;
      Store(first, a - c);
      Store(first + plane, b + c);
      Store(first + 2 * plane, c - b);
      Store(first + 3 * plane, b - e);
    }
  }
}

// A^T m A of `count` tiles: two rows of y of `width` columns, the second null where it is beyond the image. Whether all
// are finite.
TPU_LANES bool TransformOutput(const float* from, int64_t plane, int64_t count, int64_t width, float* top,
                               float* bottom) {
  Lanes zeros = Zeros();  // but for infinities and NaN, which are NaN here
  const auto put = [&](float* to, int64_t columns, Mask some, const Lanes(&s)[kWindow]) TPU_LANES {
    const Lanes a = s[0] + s[1] + s[2], b = s[1] - s[2] - s[3];
    zeros = AddProduct(zeros, Only(a, some), Zeros());
    zeros = AddProduct(zeros, Only(b, some), Zeros());
    StoreFirst(to, columns, AlternateFirst(a, b));
    StoreFirst(to + kLanes, columns - kLanes, AlternateSecond(a, b));
  };
  for (int64_t q = 0; q < count; q += kLanes) {
    const int64_t columns = std::min(kTile * (count - q), width - kTile * q);
    Lanes first[kWindow], second[kWindow];
    for (int64_t s = 0; s < kWindow; ++s) {
      Lanes m[kWindow];
      for (int64_t r = 0; r < kWindow; ++r) m[r] = Load(from + (r * kWindow + s) * plane + q);
      first[s] = m[0] + m[1] + m[2];
      second[s] = m[1] - m[2] - m[3];
    }
    const Mask some = MaskOf(BitsBetween(0, count - q));
    put(top + kTile * q, columns, some, first);
    if (bottom != nullptr) put(bottom + kTile * q, columns, some, second);
  }
  return !AnyNaN(zeros);
}

// Of two rows of y of `width` columns, null where they are beyond it: A y A^T of `count` tiles.
TPU_LANES void TransformGradient(const float* top, const float* bottom, int64_t width, int64_t count, float* to,
                                 int64_t plane) {
  for (int64_t q = 0; q < count; q += kLanes) {
    Lanes columns[2][kWindow];
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t at = kTile * q + half * kLanes;
      const Mask inside = MaskOf(BitsBetween(0, width - at));
      const Lanes a = Load(top + at, inside), b = bottom != nullptr ? Load(bottom + at, inside) : Zeros();
      columns[half][0] = a;
      columns[half][1] = a + b;
      columns[half][2] = a - b;
      columns[half][3] = Zeros() - b;
    }
    for (int64_t r = 0; r < kWindow; ++r) {
      const Lanes a = Evens(columns[0][r], columns[1][r]), b = Odds(columns[0][r], columns[1][r]);
      float* const first = to + r * kWindow * plane + q;
      Store(first, a);
      Store(first + plane, a + b);
      Store(first + 2 * plane, a - b);
      Store(first + 3 * plane, Zeros() - b);
    }
  }
}

// G^T u G of `count` windows, u the sums of `parts` times kPlanes planes. Whether all are finite.
TPU_LANES bool TransformSums(const float* sums, int64_t plane, int64_t parts, int64_t count, float* windows) {
  const Lanes half = Every(0.5f);
  const auto gather = [=](Lanes a, Lanes b, Lanes c, Lanes d, Lanes(&r)[3]) TPU_LANES {
    const Lanes both = half * (b + c);
    r[0] = a + both;
    r[1] = half * (b - c);
    r[2] = both + d;
  };
  bool finite = true;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    Lanes columns[kWindow][3];
    for (int64_t s = 0; s < kWindow; ++s) {
      Lanes u[kWindow];
      for (int64_t r = 0; r < kWindow; ++r) {
        u[r] = Zeros();
        for (int64_t part = 0; part < parts; ++part) {
          u[r] = u[r] + LoadFirst(sums + (part * kPlanes + r * kWindow + s) * plane + i, lanes);
        }
      }
      gather(u[0], u[1], u[2], u[3], columns[s]);
    }
    alignas(64) float taps[kTaps][kLanes];
    for (int64_t r = 0; r < 3; ++r) {
      Lanes row[3];
      gather(columns[0][r], columns[1][r], columns[2][r], columns[3][r], row);
      for (int64_t s = 0; s < 3; ++s) Store(taps[r * 3 + s], row[s]);
    }
    for (int64_t l = 0; l < lanes; ++l) {
      for (int64_t t = 0; t < kTaps; ++t) {
        windows[(i + l) * kTaps + t] = taps[t][l];
        finite &= std::isfinite(taps[t][l]);
      }
    }
  }
  return finite;
}
