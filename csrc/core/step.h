// M <- momentum M + D and W <- W - lr (u + weight_decay W), element by element.
#pragma once

#include "macros.h"

namespace mbf {

// The scalars of a step in one type: double in a request, float in a kernel's parameters, lanes in
// a kernel. A new scalar is a new member here, named below, and a field of the Python class of the
// same name (mbf_kernels/options.py); everything in between hands the struct on as it is.
template <class T>
struct StepScalars {
  T lr;
  T momentum;
  T weight_decay;
  T momentum_correction;  // what makes M an average of gradients without bias

  // f of each.
  template <class F>
  MBF_INLINE auto map(F f) const -> StepScalars<decltype(f(lr))> {
    return {f(lr), f(momentum), f(weight_decay), f(momentum_correction)};
  }
};

constexpr const char* kStepScalarNames[] = {"lr", "momentum", "weight_decay",
                                            "momentum_correction"};
constexpr int kStepScalars = sizeof(kStepScalarNames) / sizeof(kStepScalarNames[0]);
static_assert(sizeof(StepScalars<double>) == kStepScalars * sizeof(double));

// One multiply-add after the other, so that there is only one way to round: every path through a
// step gives the same bits.
template <class V>
MBF_INLINE V accumulated(const StepScalars<V>& s, V m, V d) {
  return s.momentum * m + d;
}

template <class V>
MBF_INLINE V moved(const StepScalars<V>& s, V w, V u) {
  return w - s.lr * (u + s.weight_decay * w);
}

}  // namespace mbf
