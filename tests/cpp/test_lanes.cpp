// Lanes and transposes of csrc/cpu: every lane type of this instruction set, against plain loops.
#include <cmath>
#include <limits>
#include <vector>

#include "../../csrc/cpu/lanes.h"
#include "../../csrc/cpu/transpose.h"
#include "report.h"

namespace {

template <class V>
using Scalar = typename V::Scalar;

template <class V>
void test_arithmetic(const char* type) {
  using T = Scalar<V>;
  constexpr int N = V::kLanes;
  std::vector<T> a(N), b(N), out(N);
  for (int l = 0; l < N; ++l) {
    a[l] = T(l + 1);
    b[l] = T(3 * l) - T(7);
  }
  const V x = V::load(a.data());
  const V y = V::load(b.data());
  const auto expect = [&](V v, auto f, const char* what) {
    v.store(out.data());
    for (int l = 0; l < N; ++l)
      CHECK(out[l] == f(l), "%s %s, lane %d: %g", type, what, l, double(out[l]));
  };
  expect(x + y, [&](int l) { return a[l] + b[l]; }, "+");
  expect(x - y, [&](int l) { return a[l] - b[l]; }, "-");
  expect(x * y, [&](int l) { return a[l] * b[l]; }, "*");
  expect(mbf::reciprocal(x), [&](int l) { return T(1) / a[l]; }, "reciprocal");
  expect(mbf::broadcast<V>(2.5), [&](int) { return T(2.5); }, "broadcast");
}

// The comparison by which an inverse is accepted.
template <class V>
auto positive_finite(V x) {
  return mbf::positive(x) & mbf::less(x, mbf::broadcast<V>(INFINITY));
}

template <class V>
void test_masks(const char* type) {
  using T = Scalar<V>;
  constexpr int N = V::kLanes;
  constexpr T inf = std::numeric_limits<T>::infinity();
  const T good[] = {T(1), std::numeric_limits<T>::min(), std::numeric_limits<T>::max(),
                    std::numeric_limits<T>::denorm_min()};
  const T bad[] = {T(0),
                   T(-0.0),
                   T(-1),
                   inf,
                   -inf,
                   std::numeric_limits<T>::quiet_NaN(),
                   -std::numeric_limits<T>::denorm_min()};
  std::vector<T> a(N);
  for (int l = 0; l < N; ++l) a[l] = good[l % 4];
  CHECK(mbf::all_lanes(positive_finite(V::load(a.data()))), "%s: all good lanes refused", type);
  for (int l = 0; l < N; ++l) {
    for (T value : bad) {
      const T before = a[l];
      a[l] = value;
      CHECK(!mbf::all_lanes(positive_finite(V::load(a.data()))), "%s: %g in lane %d accepted", type,
            double(value), l);
      a[l] = before;
    }
  }
  std::vector<T> other(N, T(1));
  other[N - 1] = T(0);
  const auto both = positive_finite(V::load(a.data())) & positive_finite(V::load(other.data()));
  CHECK(!mbf::all_lanes(both), "%s: & of masks forgets a lane", type);
}

// All memory has exactly the size of the rows, so that the address sanitizer sees any access
// outside it.
template <class V, class Count>
void test_transpose(const char* type, Count count, int gap) {
  using T = Scalar<V>;
  constexpr int N = V::kLanes;
  const int stride = count + gap;
  std::vector<T> memory((N - 1) * stride + count);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = T(i + 1);
  std::vector<T> columns(count * N);
  {
    std::vector<V> out(count);
    mbf::load_transposed<V>(memory.data(), stride, count, out.data());
    for (int c = 0; c < count; ++c) out[c].store(columns.data() + c * N);
  }
  for (int c = 0; c < count; ++c) {
    for (int l = 0; l < N; ++l) {
      CHECK(columns[c * N + l] == T(l * stride + c + 1), "%s load, count %d gap %d: (%d, %d)", type,
            int(count), gap, l, c);
    }
  }
  std::vector<T> target(memory.size(), T(-1));
  mbf::store_transposed<V>(target.data(), stride, count,
                           [&](int c) { return V::load(columns.data() + c * N); });
  for (int i = 0; i < static_cast<int>(memory.size()); ++i) {
    const T expected = i % stride < count ? memory[i] : T(-1);
    CHECK(target[i] == expected, "%s store, count %d gap %d: element %d is %g", type, int(count),
          gap, i, double(target[i]));
  }
}

template <class V, int... C>
void test_constant_counts(const char* type) {
  (test_transpose<V>(type, mbf::Const<C>{}, 0), ...);
  (test_transpose<V>(type, mbf::Const<C>{}, 3), ...);
}

template <class V>
void test_lane_type(const char* type) {
  test_arithmetic<V>(type);
  test_masks<V>(type);
  for (int count = 1; count <= 21; ++count) {
    for (int gap : {0, 1, 2, 5}) test_transpose<V>(type, count, gap);
  }
  test_constant_counts<V, 1, 3, 4, 9>(type);
}

#define TEST_LANES(...) test_lane_type<__VA_ARGS__>(#__VA_ARGS__)

}  // namespace

int main() {
  using namespace mbf;
#if defined(__AVX512F__)
  TEST_LANES(Lanes<float, 16>);
  TEST_LANES(Lanes<double, 8>);
#elif defined(__AVX2__)
  TEST_LANES(Lanes<float, 8>);
  TEST_LANES(Lanes<double, 4>);
  TEST_LANES(LanePair<Lanes<float, 8> >);
  TEST_LANES(LanePair<Lanes<double, 4> >);
#else
  TEST_LANES(Lanes<float, 4>);
  TEST_LANES(Lanes<double, 2>);
  TEST_LANES(LanePair<Lanes<float, 4> >);
#endif
  return finish();
}
