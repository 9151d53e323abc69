// The schemas of the operators: torch.ops.mbf_kernels.
//
// They use torch's stable ABI only, so that one binary serves every torch from 2.10 on. A schema
// marks what an operator writes, as in (a!). `layout` is int64 [2, tensors + 1] on the host: the
// first tile of each tensor and its number of blocks (see Call in call.h). `scalars` are the
// members of StepScalars (core/step.h) in order.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(mbf_kernels, m) {
  m.def("spd_inverse(Tensor matrices, float damping) -> (Tensor, Tensor)");
  m.def(
      "update_(Tensor(a!) stats, Tensor(b!) tallies, Tensor[] grads, Tensor layout, "
      "int block_size, int[] tiles, float beta) -> ()");
  m.def(
      "invert_(Tensor stats, Tensor tallies, Tensor(a!) inverse, Tensor(b!) info, Tensor layout, "
      "int block_size, int[] tiles, Tensor damping, bool relative, bool debias) -> ()");
  m.def(
      "step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momenta, Tensor inverse, "
      "Tensor layout, int block_size, float[] scalars, Tensor? target_norms=None, "
      "Tensor(c!)? directions=None, Tensor(d!)? norms=None, Tensor? controls=None) -> ()");
  m.def(
      "fused_step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momenta, Tensor(c!) stats, "
      "Tensor(d!) tallies, Tensor(e!) inverse, Tensor(f!) info, Tensor layout, int block_size, "
      "float[] scalars, int[] update, float beta, int[] invert, Tensor damping, bool relative, "
      "bool debias, Tensor(g!)? target_norms=None, bool refresh_targets=False, "
      "Tensor(h!)? directions=None, Tensor(i!)? norms=None, Tensor? controls=None) -> ()");
  // Blocks that rows share. `layout` is int64 [layers, 6] on the host (see RowLayout in
  // row_views.h); lists have the weight of each layer, followed by its bias if one is joined.
  m.def(
      "shared_update_(Tensor(a!) stats, Tensor(b!) weights, Tensor(c!) left_out, Tensor[] grads, "
      "Tensor(d!)[] squares, Tensor layout, int[] blocks, float beta) -> ()");
  m.def(
      "shared_step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momenta, Tensor inverse, "
      "Tensor layout, float[] scalars, Tensor[] squares, Tensor? weights=None, "
      "Tensor(c!)? target_norms=None, bool refresh_targets=False, "
      "Tensor(d!)? directions=None, bool check_only=False, Tensor? controls=None) -> ()");
}
