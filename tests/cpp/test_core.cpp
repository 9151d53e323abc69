// csrc/core with plain floats and doubles as lanes, against long double.
//
// All memory has exactly the size the headers ask for, so that the address sanitizer sees any
// access outside it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "../../csrc/core/adam_step.h"
#include "../../csrc/core/rank_one_ema.h"
#include "../../csrc/core/spd_inverse.h"
#include "../../csrc/core/symmetric_product.h"
#include "report.h"

namespace {

using Wide = long double;

template <class T>
constexpr Wide kEps = std::numeric_limits<T>::epsilon();

template <class T>
const char* name() {
  return sizeof(T) == 4 ? "float" : "double";
}

template <class T>
struct Memory {
  std::vector<T> triangle, reciprocal, panel;
  explicit Memory(int d)
      : triangle(mbf::triangle_size(d)), reciprocal(d), panel(mbf::kPanelWidth * d) {}
  mbf::InverseWorkspace<T> workspace() {
    return {triangle.data(), reciprocal.data(), panel.data()};
  }
};

// Lower triangle of B B^T + d I / 4, rounded to T.
template <class T>
std::vector<T> random_spd(int d, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<Wide> b(d * d);
  for (auto& x : b) x = normal(random);
  std::vector<T> packed(mbf::triangle_size(d));
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j <= i; ++j) {
      Wide sum = i == j ? d / 4.0L : 0;
      for (int k = 0; k < d; ++k) sum += b[i * d + k] * b[j * d + k];
      packed[mbf::triangle_index(i, j)] = static_cast<T>(sum);
    }
  }
  return packed;
}

template <class T>
Wide at(const std::vector<T>& packed, int i, int j) {
  return packed[i >= j ? mbf::triangle_index(i, j) : mbf::triangle_index(j, i)];
}

// Gauss-Jordan without pivoting, which a positive definite matrix does not need.
template <class T>
std::vector<Wide> gauss_jordan(const std::vector<T>& packed, int d) {
  std::vector<Wide> a(d * d), x(d * d, 0);
  for (int i = 0; i < d; ++i) {
    x[i * d + i] = 1;
    for (int j = 0; j < d; ++j) a[i * d + j] = at(packed, i, j);
  }
  for (int k = 0; k < d; ++k) {
    const Wide pivot = a[k * d + k];
    for (int j = 0; j < d; ++j) {
      a[k * d + j] /= pivot;
      x[k * d + j] /= pivot;
    }
    for (int i = 0; i < d; ++i) {
      const Wide factor = a[i * d + k];
      if (i == k || factor == 0) continue;
      for (int j = 0; j < d; ++j) {
        a[i * d + j] -= factor * a[k * d + j];
        x[i * d + j] -= factor * x[k * d + j];
      }
    }
  }
  return x;
}

template <class T>
Wide frobenius(const std::vector<T>& elements) {
  Wide sum = 0;
  for (T x : elements) sum += static_cast<Wide>(x) * x;
  return std::sqrt(sum);
}

template <class T>
int pivot_of(Memory<T>& memory, int d) {
  return mbf::failed_pivot([&](int j) { return memory.reciprocal[j]; },
                           [&](int j) { return memory.triangle[mbf::triangle_index(j, j)]; },
                           std::numeric_limits<T>::infinity(), d);
}

// One instantiation per type and extent: expanded and instrumented, each is slow to compile.
template <class T, class Dim>
__attribute__((noinline)) void invert(Memory<T>& memory, const T* packed, Dim extent) {
  mbf::spd_inverse(
      memory.workspace(), [&](int row, int col) { return packed[mbf::triangle_index(row, col)]; },
      extent);
}

// |P - A^-1| <= 4 d eps cond(A) ||A^-1||_F, with ||A||_F ||A^-1||_F >= cond(A).
template <class T, class Dim>
void test_inverse(Dim extent, bool in_place, std::mt19937& random) {
  const int d = extent;
  const std::vector<T> packed = random_spd<T>(d, random);
  Memory<T> memory(d);
  if (in_place) memory.triangle = packed;
  invert(memory, in_place ? memory.triangle.data() : packed.data(), extent);
  const std::vector<Wide> exact = gauss_jordan(packed, d);
  std::vector<Wide> full(d * d);
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) full[i * d + j] = at(packed, i, j);
  }
  const Wide size = frobenius(exact);
  const Wide bound = 4 * d * kEps<T> * frobenius(full) * size * size;
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j <= i; ++j) {
      const Wide error = std::abs(at(memory.triangle, i, j) - exact[i * d + j]);
      CHECK(error <= bound, "spd_inverse %s d=%d in_place=%d (%d,%d): off by %Lg, bound %Lg",
            name<T>(), d, in_place, i, j, error, bound);
    }
  }
  CHECK(mbf::usable(memory.workspace(), std::numeric_limits<T>::infinity(), d),
        "usable %s d=%d says no", name<T>(), d);
  CHECK(pivot_of(memory, d) == 0, "failed_pivot %s d=%d is not 0", name<T>(), d);
}

// With L of -1, 0 and 1 and D of powers of four, A = L D L^T is exact, and so are its pivots.
template <class T, class Dim>
void test_failure(Dim extent, int place, T bad, std::mt19937& random) {
  const int d = extent;
  std::vector<Wide> l(d * d, 0), pivots(d);
  for (int i = 0; i < d; ++i) {
    l[i * d + i] = 1;
    pivots[i] = std::ldexp(1.0L, 2 * static_cast<int>(random() % 3) - 2);
    for (int j = 0; j < i; ++j) {
      if (random() % d < 3 && j != place && i != place) {
        l[i * d + j] = static_cast<int>(random() % 3) - 1;
      }
    }
  }
  std::vector<T> packed(mbf::triangle_size(d));
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j <= i; ++j) {
      Wide sum = 0;
      for (int k = 0; k <= j; ++k) sum += l[i * d + k] * pivots[k] * l[j * d + k];
      packed[mbf::triangle_index(i, j)] = static_cast<T>(sum);
    }
  }
  packed[mbf::triangle_index(place, place)] = bad;  // alone in its row and column: it is the pivot
  Memory<T> memory(d);
  invert(memory, packed.data(), extent);
  CHECK(!mbf::usable(memory.workspace(), std::numeric_limits<T>::infinity(), d),
        "usable %s d=%d pivot %d = %g says yes", name<T>(), d, place + 1, static_cast<double>(bad));
  const int found = pivot_of(memory, d);
  CHECK(found == place + 1, "failed_pivot %s d=%d, pivot %d = %g: got %d", name<T>(), d, place + 1,
        static_cast<double>(bad), found);
}

// Every pivot is fine, but the first element of the inverse, 2^140 (or 2^1026), is too large.
template <class T>
void test_overflow() {
  const int s = sizeof(T) == 4 ? 0 : 886;
  const Wide unit = std::ldexp(1.0L, -s);
  const std::vector<T> packed{static_cast<T>(std::ldexp(unit, -120)),
                              static_cast<T>(std::ldexp(unit, -100)),
                              static_cast<T>(std::ldexp(unit, -80) * (1 + std::ldexp(1.0L, -20)))};
  Memory<T> memory(2);
  invert(memory, packed.data(), 2);
  CHECK(!mbf::usable(memory.workspace(), std::numeric_limits<T>::infinity(), 2),
        "overflow %s: usable says yes", name<T>());
  CHECK(pivot_of(memory, 2) == 1, "overflow %s: pivot %d", name<T>(), pivot_of(memory, 2));
}

template <class T>
struct Slot {
  T* p;
  T load() const { return *p; }
  void store(T x) const { *p = x; }
};

// Three products and a sum: the error is at most 3 eps times the magnitudes added.
template <class T, class Dim>
void test_ema(Dim extent, T beta, std::mt19937& random) {
  const int d = extent;
  std::normal_distribution<double> normal;
  std::vector<T> g(mbf::triangle_size(d)), v(d);
  for (auto& x : g) x = static_cast<T>(normal(random));
  for (auto& x : v) x = static_cast<T>(normal(random));
  const std::vector<T> before = g;
  const T rest = 1 - beta;
  mbf::rank_one_ema([&](int i) { return Slot<T>{&g[i]}; }, v.data(), beta, rest, extent);
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j <= i; ++j) {
      const Wide old = static_cast<Wide>(beta) * at(before, i, j);
      const Wide fresh = static_cast<Wide>(rest) * v[i] * v[j];
      const Wide error = std::abs(at(g, i, j) - (old + fresh));
      CHECK(error <= 3 * kEps<T> * (std::abs(old) + std::abs(fresh)),
            "rank_one_ema %s d=%d (%d,%d): off by %Lg", name<T>(), d, i, j, error);
    }
  }
}

// A sum of d products: the error is at most (d + 1) eps times the magnitudes added.
template <class T, class Dim>
void test_product(Dim extent, std::mt19937& random) {
  const int d = extent;
  std::normal_distribution<double> normal;
  std::vector<T> p(mbf::triangle_size(d)), m(d), u(d, std::numeric_limits<T>::quiet_NaN());
  for (auto& x : p) x = static_cast<T>(normal(random));
  for (auto& x : m) x = static_cast<T>(normal(random));
  mbf::symmetric_product([&](int i) { return p[i]; }, m.data(), u.data(), extent);
  for (int i = 0; i < d; ++i) {
    Wide exact = 0, size = 0;
    for (int j = 0; j < d; ++j) {
      exact += at(p, i, j) * m[j];
      size += std::abs(at(p, i, j) * m[j]);
    }
    const Wide error = std::abs(u[i] - exact);
    CHECK(error <= (d + 1) * kEps<T> * size, "symmetric_product %s d=%d row %d: off by %Lg",
          name<T>(), d, i, error);
  }
}

template <class T, class Dim>
void test_adam(Dim extent, std::mt19937& random) {
  const int d = extent;
  std::normal_distribution<double> normal;
  std::vector<T> v(d), m(d);
  for (auto& x : v) x = static_cast<T>(std::pow(normal(random), 2));
  for (auto& x : m) x = static_cast<T>(normal(random));
  v[0] = 0;  // so that the divisor is 1e-8 and the quotient is clipped
  const T a = T(0.4), b = T(2.5);
  const T found = mbf::clipped_adam_square([&](int e) { return v[e]; }, m.data(), a, b, extent);
  Wide exact = 0;
  for (int e = 0; e < d; ++e) {
    const Wide x = Wide(a) * m[e] / (std::sqrt(Wide(b) * v[e]) + 1e-8L);
    exact += std::min(x * x, Wide(1));
  }
  const Wide error = std::abs(found - exact);
  CHECK(error <= (d + 16) * kEps<T> * exact, "clipped_adam_square %s d=%d: off by %Lg", name<T>(),
        d, error);
  m[d - 1] = std::numeric_limits<T>::quiet_NaN();
  const T bad = mbf::clipped_adam_square([&](int e) { return v[e]; }, m.data(), a, b, extent);
  CHECK(std::isnan(bad), "clipped_adam_square %s d=%d: a NaN was lost", name<T>(), d);
}

template <class T, class Dim>
void test_all(Dim extent, std::mt19937& random) {
  const int d = extent;
  for (bool in_place : {false, true}) test_inverse<T>(extent, in_place, random);
  constexpr T inf = std::numeric_limits<T>::infinity();
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  const T tiny = std::numeric_limits<T>::min() / 8;  // its reciprocal overflows
  for (int place : {0, d / 2, d - 1}) {
    for (T bad : {T(0), T(-1), nan, inf, -inf, tiny}) test_failure<T>(extent, place, bad, random);
  }
  for (T beta : {T(0), T(0.9), T(1)}) test_ema<T>(extent, beta, random);
  test_product<T>(extent, random);
  test_adam<T>(extent, random);
}

template <class T, int... D>
void test_constant_extents(std::mt19937& random) {
  (test_all<T>(mbf::Const<D>{}, random), ...);
}

template <class First, class Last>
void test_panels(First first, Last last) {
  std::vector<int> seen(64, 0);
  mbf::for_panels<3>(first, last, [&](auto start, auto size) {
    CHECK(size >= 1 && size <= 3, "for_panels: a panel of %d", int(size));
    for (int i = 0; i < size; ++i) ++seen[start + i];
  });
  for (int i = 0; i < 64; ++i) {
    CHECK(seen[i] == (i >= first && i < last), "for_panels %d..%d: %d seen %d times", int(first),
          int(last), i, seen[i]);
  }
}

void test_extents() {
  for (int first = 0; first < 8; ++first) {
    for (int last = first; last < 20; ++last) test_panels(first, last);
  }
  test_panels(mbf::Const<0>{}, mbf::Const<0>{});
  test_panels(mbf::Const<2>{}, mbf::Const<7>{});
  test_panels(mbf::Const<1>{}, mbf::Const<10>{});
  static_assert(mbf::triangle_size(9) == 45);
  static_assert(mbf::triangle_index(2, 1) == 4);
}

}  // namespace

int main() {
  std::mt19937 random(1);
  test_extents();
  test_constant_extents<float, 1, 2, 3, 4, 7>(random);
  test_constant_extents<double, 5>(random);
  for (int d = 1; d <= 64; ++d) {
    test_all<float>(d, random);
    test_all<double>(d, random);
  }
  test_overflow<float>();
  test_overflow<double>();
  return finish();
}
