// M <- momentum M + D, what P is multiplied with, and W <- W - lr (u + weight_decay W), element by
// element.
#pragma once

#include "macros.h"

namespace mbf {

// The scalars of a step: doubles in a job, floats in the parameters of a CUDA kernel, lanes in a
// CPU kernel. A new scalar is added here, in map() and in the names below, and to the Python class
// of the same name (mbf_kernels/options.py); everything in between passes the struct on unchanged.
template <class T>
struct StepScalars {
  T lr;
  T momentum;
  T weight_decay;
  T momentum_correction;  // times M, an average of the gradients without bias
  T nesterov;             // 1: P is multiplied with momentum M + D; 0: with M

  // Applies f to every scalar.
  template <class F>
  MBF_INLINE auto map(F f) const -> StepScalars<decltype(f(lr))> {
    return {f(lr), f(momentum), f(weight_decay), f(momentum_correction), f(nesterov)};
  }
};

constexpr const char* kStepScalarNames[] = {"lr", "momentum", "weight_decay", "momentum_correction",
                                            "nesterov"};
constexpr int kStepScalars = sizeof(kStepScalarNames) / sizeof(kStepScalarNames[0]);
static_assert(sizeof(StepScalars<double>) == kStepScalars * sizeof(double));

// Chains of multiply-adds, which can be contracted to FMAs in only one way: every code path of a
// step gives the same bits.
template <class V>
MBF_INLINE V accumulated(const StepScalars<V>& s, V m, V d) {
  return s.momentum * m + d;
}

// What takes the place of M in the product with P, given the new M.
template <class V>
MBF_INLINE V looked_ahead(const StepScalars<V>& s, V m, V d) {
  return m + s.nesterov * ((s.momentum * m + d) - m);
}

template <class V>
MBF_INLINE V moved(const StepScalars<V>& s, V w, V u) {
  return w - s.lr * (u + s.weight_decay * w);
}

}  // namespace mbf
