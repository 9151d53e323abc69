// float16 and bfloat16: all 65,536 bit patterns, and rounding against its definition in double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "../../csrc/cpu/element_formats.h"
#include "report.h"

namespace {

struct Layout {
  const char* name;
  int mantissa;  // stored bits
  int exponent;  // bits
};
constexpr Layout kHalf{"float16", 10, 5};
constexpr Layout kBrain{"bfloat16", 7, 8};

int bias(Layout f) { return (1 << (f.exponent - 1)) - 1; }

// The value of a bit pattern by the definition of the format.
double value_of(uint16_t bits, Layout f) {
  const int sign = bits >> 15;
  const int e = (bits >> f.mantissa) & ((1 << f.exponent) - 1);
  const int m = bits & ((1 << f.mantissa) - 1);
  double size;
  if (e == (1 << f.exponent) - 1) {
    size = m ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (e == 0) {
    size = std::ldexp(m, 1 - bias(f) - f.mantissa);
  } else {
    size = std::ldexp((1 << f.mantissa) + m, e - bias(f) - f.mantissa);
  }
  return sign ? -size : size;
}

// The nearest value of the format, ties to even, as nearbyint rounds to a multiple of the spacing.
double rounded(double x, Layout f) {
  if (std::isnan(x) || std::isinf(x) || x == 0) return x;
  const int e = std::max(std::ilogb(x), 1 - bias(f));
  const double spacing = std::ldexp(1.0, e - f.mantissa);
  const double nearest = std::nearbyint(x / spacing) * spacing;
  const double largest = std::ldexp(2.0 - std::ldexp(1.0, -f.mantissa), bias(f));
  return std::abs(nearest) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x)
                                     : nearest;
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

template <class Stored>
void test_narrow(float x, Layout f) {
  const uint16_t bits = mbf::narrow<Stored>(x).bits;
  CHECK(same(value_of(bits, f), rounded(x, f)), "%s: %a became %04x = %a, expected %a", f.name,
        double(x), bits, value_of(bits, f), rounded(x, f));
}

template <class Stored>
void test_format(Layout f) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const double exact = value_of(bits, f);
    const float wide = mbf::widen(Stored{bits});
    CHECK(same(wide, exact), "%s: %04x widened to %a, expected %a", f.name, bits, double(wide),
          exact);
    if (std::isnan(exact)) {
      CHECK(std::isnan(value_of(mbf::narrow<Stored>(wide).bits, f)), "%s: NaN %04x lost", f.name,
            bits);
      continue;
    }
    CHECK(mbf::narrow<Stored>(wide).bits == bits, "%s: %04x came back as %04x", f.name, bits,
          mbf::narrow<Stored>(wide).bits);
    if (std::isinf(exact)) continue;
    // The midpoint to the next pattern and the floats beside it. That of the largest overflows.
    const double next = (bits & 0x7fffu) + 1u == ((1u << f.exponent) - 1) << f.mantissa
                            ? std::copysign(std::ldexp(1.0, bias(f) + 1), exact)
                            : value_of(static_cast<uint16_t>(bits + 1), f);
    const auto middle = static_cast<float>((exact + next) / 2);
    constexpr float inf = std::numeric_limits<float>::infinity();
    for (float x : {middle, std::nextafter(middle, inf), std::nextafter(middle, -inf),
                    std::nextafter(wide, inf), std::nextafter(wide, -inf)}) {
      test_narrow<Stored>(x, f);
    }
  }
  std::mt19937 random(2);
  for (int i = 0; i < 200000; ++i) test_narrow<Stored>(mbf::bits_float(random()), f);
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  for (float x :
       {nan, -nan, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(),
        0.0f, -0.0f, 65519.0f, 65520.0f, -65520.0f, 0x1p-25f, 0x1.8p-25f, 0x1p-24f}) {
    test_narrow<Stored>(x, f);
  }
  // A NaN whose payload is only in the bits that are dropped stays a NaN.
  test_narrow<Stored>(mbf::bits_float(0x7f800001u), f);
  test_narrow<Stored>(mbf::bits_float(0xff800001u), f);
}

// Lanes must give what the scalar functions give, for finite values.
template <class V>
void test_brain_lanes(const char* type) {
  constexpr int N = V::kLanes;
  std::mt19937 random(3);
  for (uint32_t start = 0; start < 65536; start += N) {
    std::vector<mbf::BFloat16> stored(N), back(N);
    std::vector<float> wide(N);
    for (int l = 0; l < N; ++l) stored[l] = {static_cast<uint16_t>(start + l)};
    mbf::load_lanes<V>(stored.data()).store(wide.data());
    for (int l = 0; l < N; ++l) {
      CHECK(same(wide[l], value_of(stored[l].bits, kBrain)), "%s: load of %04x", type,
            stored[l].bits);
      if (!std::isfinite(wide[l])) wide[l] = 1.0f;
      const float moved = mbf::bits_float(mbf::float_bits(wide[l]) ^ (random() & 0xffffu));
      wide[l] = moved;
    }
    mbf::store_lanes(mbf::nearest_bfloat16(V::load(wide.data())), back.data());
    for (int l = 0; l < N; ++l) {
      const double found = value_of(back[l].bits, kBrain);
      CHECK(same(found, mbf::nearest_bfloat16(wide[l])), "%s: store of %a", type, double(wide[l]));
      if (std::isinf(rounded(wide[l], kBrain))) continue;
      // Not always `rounded`, which resolves ties to even.
      CHECK(std::abs(found - wide[l]) == std::abs(rounded(wide[l], kBrain) - wide[l]),
            "%s: %a became %a", type, double(wide[l]), found);
    }
    for (int l = 0; l < N; ++l) wide[l] = std::min(std::abs(wide[l]), 0x1.fp127f);
    mbf::store_lanes(mbf::bfloat16_above(V::load(wide.data())), back.data());
    std::vector<float> roots(N);
    mbf::rough_reciprocal_root(V::load(wide.data())).store(roots.data());
    for (int l = 0; l < N; ++l) {
      const double found = value_of(back[l].bits, kBrain);
      const double below = back[l].bits == 0 ? 0 : value_of(back[l].bits - 1, kBrain);
      CHECK(same(found, mbf::bfloat16_above(wide[l])), "%s: above %a", type, double(wide[l]));
      CHECK(found >= wide[l] && (found == wide[l] || below < wide[l]), "%s: above %a: %a", type,
            double(wide[l]), found);
      if (wide[l] < std::numeric_limits<float>::min()) continue;
      const double exact = 1 / std::sqrt(double(wide[l]));
      CHECK(std::abs(roots[l] - exact) <= 0x1p-9 * exact, "%s: root of %a", type, double(wide[l]));
    }
  }
}

#define TEST_BRAIN(...) test_brain_lanes<__VA_ARGS__>(#__VA_ARGS__)

}  // namespace

int main() {
  using namespace mbf;
  test_format<Float16>(kHalf);
  test_format<BFloat16>(kBrain);
  TEST_BRAIN(Lanes<float, 4>);
  TEST_BRAIN(LanePair<Lanes<float, 4>>);
#if defined(__AVX2__)
  TEST_BRAIN(Lanes<float, 8>);
  TEST_BRAIN(LanePair<Lanes<float, 8>>);
#endif
#if defined(__AVX512F__)
  TEST_BRAIN(Lanes<float, 16>);
#endif
  return finish();
}
