// core/spd_sweep.h, the inverse of the CUDA kernels, as plain C++: an example by hand, A P against
// the identity, and the pivots it reports.
#include <cmath>
#include <random>
#include <vector>

#include "../../csrc/core/spd_sweep.h"
#include "report.h"

using namespace mbf;

namespace {

template <class T, int D>
struct Swept {
  T a[D * (D + 1) / 2];
  T reciprocals[D];

  explicit Swept(const std::vector<double>& matrix) {
    for (int i = 0; i < D; ++i) {
      for (int j = 0; j <= i; ++j) a[triangle_index(i, j)] = static_cast<T>(matrix[i * D + j]);
    }
    spd_sweep(a, Const<D>{}, [&](int k, T r) { reciprocals[k] = r; });
  }
  double inverse(int i, int j) const { return -static_cast<double>(a[symmetric_index(i, j)]); }
};

void test_by_hand() {
  // [2 1; 1 2]: pivots 2 and 3/2, inverse [2 -1; -1 2] / 3.
  const Swept<double, 2> two({2, 99, 1, 2});
  CHECK(two.reciprocals[0] == 0.5, "%g", two.reciprocals[0]);
  CHECK(std::abs(two.reciprocals[1] - 2.0 / 3) < 1e-15, "%g", two.reciprocals[1]);
  CHECK(std::abs(two.inverse(0, 0) - 2.0 / 3) < 1e-15, "%g", two.inverse(0, 0));
  CHECK(std::abs(two.inverse(1, 0) + 1.0 / 3) < 1e-15, "%g", two.inverse(1, 0));
  const Swept<float, 1> one({4});
  CHECK(one.inverse(0, 0) == 0.25, "%g", one.inverse(0, 0));
}

template <class T, int D>
void test_random(double tolerance) {
  std::mt19937 generator(D);
  std::normal_distribution<double> normal;
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<double> factor(D * D), matrix(D * D);
    for (double& x : factor) x = normal(generator);
    for (int i = 0; i < D; ++i) {
      for (int j = 0; j < D; ++j) {
        double sum = i == j ? 1.0 : 0.0;  // keeps the condition number small
        for (int k = 0; k < D; ++k) sum += factor[i * D + k] * factor[j * D + k] / D;
        matrix[i * D + j] = static_cast<T>(sum);
      }
    }
    const Swept<T, D> swept(matrix);
    for (int i = 0; i < D; ++i) {
      CHECK(swept.reciprocals[i] > 0, "D=%d: pivot %d", D, i);
      for (int j = 0; j < D; ++j) {
        double sum = 0;
        for (int k = 0; k < D; ++k) sum += matrix[i * D + k] * swept.inverse(k, j);
        // A P - I is bounded by D eps cond(A), and cond(A) is a few here.
        CHECK(std::abs(sum - (i == j)) < tolerance * D, "D=%d (%d, %d): %g", D, i, j, sum);
      }
    }
  }
}

// Pivot k depends on rows 0 .. k only, so a bad row shows first at its own pivot.
template <int D>
void test_bad_rows() {
  for (int bad = 0; bad < D; ++bad) {
    for (double value : {-1.0, 0.0, HUGE_VAL, static_cast<double>(NAN)}) {
      std::vector<double> matrix(D * D, 0.0);
      for (int i = 0; i < D; ++i) matrix[i * D + i] = i == bad ? value : 2.0;
      const Swept<float, D> swept(matrix);
      int first = D;
      for (int k = D - 1; k >= 0; --k) {
        const float r = swept.reciprocals[k];
        if (!(r > 0 && r < HUGE_VALF)) first = k;
      }
      CHECK(first == bad, "D=%d: %g in row %d shows at %d", D, value, bad, first);
    }
  }
}

}  // namespace

int main() {
  test_by_hand();
  test_random<float, 1>(1e-6);
  test_random<float, 4>(1e-5);
  test_random<float, 9>(1e-5);
  test_random<float, 12>(1e-5);
  test_random<double, 9>(1e-14);
  test_bad_rows<3>();
  test_bad_rows<9>();
  return finish();
}
