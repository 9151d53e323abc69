// The operators: schemas, argument checks, and the hand-over to the CPU kernels.
//
// torch's stable ABI throughout, so that one binary serves every torch from 2.10 on. Schemas say
// what is written: (a!) marks it.
#include <functional>
#include <optional>
#include <tuple>

#include "cpu/driver.h"
#include "huge_pages.h"
#include "tensor_checks.h"

namespace mbf {
namespace {

constexpr ScalarType kFloat = ScalarType::Float;
constexpr ScalarType kDouble = ScalarType::Double;
constexpr ScalarType kBFloat16 = ScalarType::BFloat16;

// float64 statistics serve float64 tensors, float32 statistics the rest.
const std::vector<Format>& natural_formats(bool float64) {
  static const std::vector<Format> wide{Format::Float64};
  static const std::vector<Format> narrow{Format::Float32, Format::BFloat16, Format::Float16};
  return float64 ? wide : narrow;
}

void torch_parallel_for(int64_t begin, int64_t end, int64_t grain,
                        const std::function<void(int64_t, int64_t)>& body) {
  torch::stable::parallel_for(begin, end, grain, body);
}

int64_t triangle_numbers(int64_t d) { return d * (d + 1) / 2; }

ScalarType stats_dtype(const char* name, const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  if (type != kFloat && type != kDouble) {
    fail(name, ": expected float32 or float64, got ", dtype_name(type));
  }
  return type;
}

// Everything a call may bring, gathered and checked step by step.
struct Call {
  TileJob job{};
  int64_t d;
  bool float64 = false;
  std::vector<int64_t> blocks;
  std::vector<int64_t> starts;
  std::vector<BlockView> params, grads, momenta;
  std::vector<double> damping, targets;
  MemoryMap memory;

  explicit Call(int64_t block_size) : d(block_size) {
    check_block_size(block_size);
    job.block_size = static_cast<int>(block_size);
  }

  void set_blocks(std::vector<int64_t> counts) {
    for (int64_t count : counts) {
      if (count < 0) fail("blocks: expected numbers >= 0, got ", count);
    }
    blocks = std::move(counts);
    starts = tile_starts(blocks);
    job.tensors = static_cast<int64_t>(blocks.size());
    job.blocks = blocks.data();
    job.tile_start = starts.data();
  }

  void set_blocks_of(const TensorList& tensors) {
    std::vector<int64_t> counts(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) counts[i] = tensors[i].numel() / d;
    set_blocks(std::move(counts));
  }

  int64_t tiles() const { return starts.back(); }

  void set_stats(const Tensor& stats, bool written) {
    const ScalarType type = stats_dtype("stats", stats);
    float64 = type == kDouble;
    check_state("stats", stats, {tiles(), triangle_numbers(d), kTileBlocks}, type);
    memory.add("stats", stats, written);
    job.stats = stats.data_ptr();
  }

  // Without statistics the inverse alone tells the precision: bfloat16 belongs to float32.
  void set_inverse(const Tensor& inverse, bool written, bool stats_known) {
    const ScalarType type = inverse.scalar_type();
    const bool known = type == kFloat || type == kBFloat16 || type == kDouble;
    if (!known || (stats_known && float64 != (type == kDouble))) {
      fail("inverse: expected ", stats_known && float64 ? "float64" : "float32 or bfloat16",
           ", got ", dtype_name(type));
    }
    float64 = type == kDouble;
    check_state("inverse", inverse, {tiles(), triangle_numbers(d), kTileBlocks}, type);
    memory.add("inverse", inverse, written);
    job.inverse = inverse.data_ptr();
    job.inverse_format = type == kBFloat16 ? Format::BFloat16
                         : type == kDouble ? Format::Float64
                                           : Format::Float32;
  }

  void set_info(const Tensor& info) {
    check_state("info", info, {tiles(), kTileBlocks}, ScalarType::Int);
    memory.add("info", info, true);
    job.info = static_cast<int32_t*>(info.data_ptr());
  }

  // One value, or one per tensor.
  std::vector<double> per_tensor(const char* name, const Tensor& values) {
    const int64_t count = values.numel();
    if (count != 1 && count != job.tensors) {
      fail(name, ": expected 1 or ", job.tensors, " values, got ", count);
    }
    check_state(name, values, {count}, kDouble);
    const double* data = static_cast<const double*>(values.data_ptr());
    std::vector<double> out(job.tensors);
    for (int64_t i = 0; i < job.tensors; ++i) out[i] = data[count == 1 ? 0 : i];
    return out;
  }

  void set_damping(const Tensor& values, bool relative, bool debias) {
    damping = per_tensor("damping", values);
    for (double value : damping) check_damping(value);
    job.damping = damping.data();
    job.relative_damping = relative;
    job.debias = debias;
  }

  void set_tallies(const Tensor& tallies, bool written) {
    check_state("tallies", tallies, {this->tiles(), 2}, kDouble);
    memory.add("tallies", tallies, written);
    job.tallies = static_cast<Tally*>(tallies.data_ptr());
  }

  TileRange range(const char* name, const std::vector<int64_t>& ends) const {
    const bool fits = ends.size() == 2 && 0 <= ends[0] && ends[0] <= ends[1] && ends[1] <= tiles();
    if (!fits) fail(name, ": expected the first and last of 0 to ", tiles(), " tiles");
    return {ends[0], ends[1]};
  }

  void set_grads(const TensorList& tensors, const std::vector<Format>& allowed) {
    grads = block_views("grads", tensors, d, blocks, allowed, true);
    memory.add("grads", tensors, grads, blocks, d, false);
    job.grads = grads.data();
  }

  // Parameters have one format; gradients and momenta that one or the statistics'.
  void set_step(const TensorList& param_list, const TensorList& grad_list,
                const TensorList& momentum_list, double lr, double momentum, double weight_decay) {
    memory.reserve(3 * param_list.size() + 8);
    params = block_views("params", param_list, d, blocks, natural_formats(float64));
    std::vector<Format> either{float64 ? Format::Float64 : Format::Float32};
    if (!params.empty()) {
      for (size_t i = 1; i < params.size(); ++i) {
        if (params[i].format != params[0].format) {
          fail(Name{"params", static_cast<int64_t>(i)}, ": expected the dtype of params[0]");
        }
      }
      if (params[0].format != either[0]) either.push_back(params[0].format);
    }
    set_grads(grad_list, either);
    momenta = block_views("momenta", momentum_list, d, blocks, either);
    memory.add("params", param_list, params, blocks, d, true);
    memory.add("momenta", momentum_list, momenta, blocks, d, true);
    job.params = params.data();
    job.momenta = momenta.data();
    job.step = true;
    job.lr = lr;
    job.momentum = momentum;
    job.weight_decay = weight_decay;
  }

  // With target norms a step takes two passes, with room for P M between them.
  void set_targets(const std::optional<Tensor>& target_norms,
                   const std::optional<Tensor>& directions, const std::optional<Tensor>& norms,
                   bool refresh, double momentum_correction) {
    if (!target_norms) {
      if (refresh) fail("target_norms: expected a tensor to be refreshed, got None");
      return;
    }
    if (!directions || !norms) fail("target_norms: expected directions and norms with it");
    check_state("directions", *directions, {tiles(), kTileBlocks, d}, float64 ? kDouble : kFloat);
    check_state("norms", *norms, {tiles(), 2}, kDouble);
    memory.add("directions", *directions, true);
    memory.add("norms", *norms, true);
    job.directions = directions->data_ptr();
    job.norms = static_cast<TileNorms*>(norms->data_ptr());
    job.refresh_targets = refresh;
    job.momentum_correction = momentum_correction;
    if (refresh) {
      check_state("target_norms", *target_norms, {job.tensors}, kDouble);
      memory.add("target_norms", *target_norms, true);
      job.target_norms = static_cast<double*>(target_norms->data_ptr());
    } else {
      targets = per_tensor("target_norms", *target_norms);
      job.target_norms = targets.data();
    }
  }

  void run() {
    memory.check();
    mbf::run(job, float64, torch_parallel_for);
  }
};

void update_(const Tensor& stats, const Tensor& tallies, const TensorList& grads,
             std::vector<int64_t> blocks, std::vector<int64_t> tiles, int64_t block_size,
             double beta) {
  Call call(block_size);
  check_unit_interval("beta", beta);
  call.set_blocks(std::move(blocks));
  call.set_stats(stats, true);
  call.set_tallies(tallies, true);
  call.set_grads(grads, natural_formats(call.float64));
  call.job.update = call.range("tiles", tiles);
  call.job.beta = beta;
  call.run();
}

void invert_(Tensor stats, Tensor tallies, Tensor inverse, Tensor info, std::vector<int64_t> blocks,
             std::vector<int64_t> tiles, Tensor damping, int64_t block_size, bool relative,
             bool debias) {
  Call call(block_size);
  call.set_blocks(std::move(blocks));
  call.set_stats(stats, false);
  call.set_tallies(tallies, false);
  call.set_inverse(inverse, true, true);
  call.set_info(info);
  call.set_damping(damping, relative, debias);
  call.job.invert = call.range("tiles", tiles);
  call.run();
}

void step_(const TensorList& params, const TensorList& grads, const TensorList& momenta,
           const Tensor& inverse, std::optional<Tensor> target_norms,
           std::optional<Tensor> directions, std::optional<Tensor> norms, int64_t block_size,
           double lr, double momentum, double weight_decay) {
  Call call(block_size);
  call.set_blocks_of(params);
  call.set_inverse(inverse, false, false);
  call.set_step(params, grads, momenta, lr, momentum, weight_decay);
  call.set_targets(target_norms, directions, norms, false, 1.0);
  call.run();
}

void fused_step_(const TensorList& params, const TensorList& grads, const TensorList& momenta,
                 const Tensor& stats, const Tensor& tallies, Tensor inverse, Tensor info,
                 Tensor damping, std::optional<Tensor> target_norms,
                 std::optional<Tensor> directions, std::optional<Tensor> norms,
                 std::vector<int64_t> update, std::vector<int64_t> invert, int64_t block_size,
                 double lr, double momentum, double weight_decay, double beta, bool relative,
                 bool debias, bool refresh_targets, double momentum_correction) {
  Call call(block_size);
  call.set_blocks_of(params);
  call.set_stats(stats, true);
  call.set_tallies(tallies, true);
  call.set_inverse(inverse, true, true);
  call.set_info(info);
  call.set_step(params, grads, momenta, lr, momentum, weight_decay);
  call.job.update = call.range("update", update);
  call.job.invert = call.range("invert", invert);
  if (!call.job.update.empty()) check_unit_interval("beta", beta);
  if (!call.job.invert.empty()) call.set_damping(damping, relative, debias);
  call.job.beta = beta;
  call.set_targets(target_norms, directions, norms, refresh_targets, momentum_correction);
  call.run();
}

std::tuple<Tensor, Tensor> spd_inverse(Tensor matrices, double damping) {
  const auto sizes = matrices.sizes();
  const int64_t dims = matrices.dim();
  if (dims < 2 || sizes[dims - 1] != sizes[dims - 2]) {
    fail("matrices: expected square matrices (..., d, d)");
  }
  if (!matrices.is_cpu()) fail("matrices: expected a tensor on cpu");
  const int64_t d = sizes[dims - 1];
  check_block_size(d);
  check_damping(damping);
  const ScalarType type = stats_dtype("matrices", matrices);
  const Tensor input = torch::stable::contiguous(matrices);
  Tensor inverse = torch::stable::new_empty(input, input.sizes());
  // Above a few megabytes the result is fresh memory, and its page faults outweigh the arithmetic.
  constexpr size_t kFreshBytes = size_t{4} << 20;
  const size_t bytes = inverse.numel() * inverse.element_size();
  if (bytes >= kFreshBytes) {
    advise_huge_pages(reinterpret_cast<uintptr_t>(inverse.data_ptr()), bytes);
  }
  const std::vector<int64_t> batch(sizes.begin(), sizes.end() - 2);
  Tensor info = torch::stable::new_empty(input, batch, ScalarType::Int);
  DenseJob job{static_cast<int>(d),
               input.numel() / (d * d),
               input.data_ptr(),
               inverse.data_ptr(),
               static_cast<int32_t*>(info.data_ptr()),
               damping};
  run(job, type == kDouble, torch_parallel_for);
  return {inverse, info};
}

}  // namespace
}  // namespace mbf

STABLE_TORCH_LIBRARY(mbf_kernels, m) {
  m.def("spd_inverse(Tensor matrices, float damping) -> (Tensor, Tensor)");
  m.def(
      "update_(Tensor(a!) stats, Tensor(b!) tallies, Tensor[] grads, int[] blocks, int[] tiles, "
      "int block_size, float beta) -> ()");
  m.def(
      "invert_(Tensor stats, Tensor tallies, Tensor(a!) inverse, Tensor(b!) info, int[] blocks, "
      "int[] tiles, Tensor damping, int block_size, bool relative, bool debias) -> ()");
  m.def(
      "step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momenta, Tensor inverse, "
      "Tensor? target_norms, Tensor(c!)? directions, Tensor(d!)? norms, int block_size, "
      "float lr, float momentum, float weight_decay) -> ()");
  m.def(
      "fused_step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momenta, Tensor(c!) stats, "
      "Tensor(d!) tallies, Tensor(e!) inverse, Tensor(f!) info, Tensor damping, "
      "Tensor(g!)? target_norms, Tensor(h!)? directions, Tensor(i!)? norms, int[] update, "
      "int[] invert, int block_size, float lr, float momentum, float weight_decay, float beta, "
      "bool relative, bool debias, bool refresh_targets, float momentum_correction) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mbf_kernels, CPU, m) {
  m.impl("spd_inverse", TORCH_BOX(&mbf::spd_inverse));
  m.impl("update_", TORCH_BOX(&mbf::update_));
  m.impl("invert_", TORCH_BOX(&mbf::invert_));
  m.impl("step_", TORCH_BOX(&mbf::step_));
  m.impl("fused_step_", TORCH_BOX(&mbf::fused_step_));
}
