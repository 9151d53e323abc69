#include "call.h"

#include <algorithm>
#include <utility>

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

int64_t triangle_numbers(int64_t d) { return d * (d + 1) / 2; }

void check_served(const char* name, ScalarType type, const Place& place) {
  if (type == kDouble && place.cuda) {
    fail(name, ": float64 is not served by the CUDA kernels; use the torch backend");
  }
}

}  // namespace

ScalarType stats_dtype(const char* name, const Tensor& tensor, const Place& place) {
  const ScalarType type = tensor.scalar_type();
  if (type != kFloat && type != kDouble) {
    fail(name, ": expected float32 or float64, got ", dtype_name(type));
  }
  check_served(name, type, place);
  return type;
}

int64_t matrix_size(const Tensor& matrices, const Place& place) {
  const auto sizes = matrices.sizes();
  const int64_t dims = matrices.dim();
  if (dims < 2 || sizes[dims - 1] != sizes[dims - 2]) {
    fail("matrices: expected square matrices (..., d, d)");
  }
  check_place({"matrices"}, matrices, place);
  check_block_size(sizes[dims - 1]);
  return sizes[dims - 1];
}

Call::Call(Place place, int64_t block_size) : place_(place), d_(block_size) {
  check_block_size(block_size);
  job.block_size = static_cast<int>(block_size);
}

void Call::set_blocks(std::vector<int64_t> counts) {
  for (int64_t count : counts) {
    if (count < 0) fail("blocks: expected numbers >= 0, got ", count);
  }
  blocks_ = std::move(counts);
  starts_ = tile_starts(blocks_);
  job.tensors = static_cast<int64_t>(blocks_.size());
  job.blocks = blocks_.data();
  job.tile_start = starts_.data();
}

void Call::set_blocks_of(const TensorList& tensors) {
  std::vector<int64_t> counts(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) counts[i] = tensors[i].numel() / d_;
  set_blocks(std::move(counts));
}

void Call::set_stats(const Tensor& stats, bool written) {
  const ScalarType type = stats_dtype("stats", stats, place_);
  float64 = type == kDouble;
  check_state("stats", stats, {tiles(), triangle_numbers(d_), kTileBlocks}, type, place_);
  memory_.add("stats", stats, written);
  job.stats = stats.data_ptr();
}

void Call::set_inverse(const Tensor& inverse, bool written, bool stats_known) {
  const ScalarType type = inverse.scalar_type();
  const bool known = type == kFloat || type == kBFloat16 || type == kDouble;
  if (!known || (stats_known && float64 != (type == kDouble))) {
    fail("inverse: expected ", stats_known && float64 ? "float64" : "float32 or bfloat16", ", got ",
         dtype_name(type));
  }
  check_served("inverse", type, place_);
  float64 = type == kDouble;
  check_state("inverse", inverse, {tiles(), triangle_numbers(d_), kTileBlocks}, type, place_);
  memory_.add("inverse", inverse, written);
  job.inverse = inverse.data_ptr();
  job.inverse_format = type == kBFloat16 ? Format::BFloat16
                       : type == kDouble ? Format::Float64
                                         : Format::Float32;
}

void Call::set_info(const Tensor& info) {
  check_state("info", info, {tiles(), kTileBlocks}, ScalarType::Int, place_);
  memory_.add("info", info, true);
  job.info = static_cast<int32_t*>(info.data_ptr());
}

void Call::check_per_tensor(const char* name, const Tensor& values, const Place& where) const {
  const int64_t count = values.numel();
  if (count != 1 && count != job.tensors) {
    fail(name, ": expected 1 or ", job.tensors, " values, got ", count);
  }
  check_state(name, values, {count}, kDouble, where);
}

std::vector<double> Call::per_tensor(const char* name, const Tensor& values) const {
  check_per_tensor(name, values, Place{});
  const int64_t count = values.numel();
  const double* data = static_cast<const double*>(values.data_ptr());
  std::vector<double> out(job.tensors);
  for (int64_t i = 0; i < job.tensors; ++i) out[i] = data[count == 1 ? 0 : i];
  return out;
}

void Call::set_damping(const Tensor& values, bool relative, bool debias) {
  job.relative_damping = relative;
  job.debias = debias;
  if (place_.cuda && !values.is_cpu()) {
    check_per_tensor("damping", values, place_);
    device_damping = static_cast<const double*>(values.data_ptr());
    damping_per_tensor = values.numel() != 1;
    return;
  }
  damping_ = per_tensor("damping", values);
  for (double value : damping_) check_damping(value);
  job.damping = damping_.data();
}

void Call::set_tallies(const Tensor& tallies, bool written) {
  check_state("tallies", tallies, {tiles(), 2}, kDouble, place_);
  memory_.add("tallies", tallies, written);
  job.tallies = static_cast<Tally*>(tallies.data_ptr());
}

TileRange Call::range(const char* name, const std::vector<int64_t>& ends) const {
  const bool fits = ends.size() == 2 && 0 <= ends[0] && ends[0] <= ends[1] && ends[1] <= tiles();
  if (!fits) fail(name, ": expected the first and last of 0 to ", tiles(), " tiles");
  return {ends[0], ends[1]};
}

std::vector<BlockView> Call::views(const char* name, const TensorList& tensors,
                                   const std::vector<Format>& allowed, bool may_be_absent) {
  std::vector<BlockView> found = block_views(name, tensors, d_, blocks_, allowed, may_be_absent);
  if (!place_.cuda) return found;  // the dispatcher has seen to it
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool absent = may_be_absent && found[i].data == nullptr;
    if (!absent) check_place(Name{name, static_cast<int64_t>(i)}, tensors[i], place_);
  }
  return found;
}

void Call::set_grads(const TensorList& tensors) { set_grads(tensors, natural_formats(float64)); }

void Call::set_grads(const TensorList& tensors, const std::vector<Format>& allowed) {
  grads_ = views("grads", tensors, allowed, true);
  memory_.add("grads", tensors, grads_, blocks_, d_, false);
  job.grads = grads_.data();
}

// Parameters have one format; gradients and momenta that one or the statistics'.
void Call::set_step(const TensorList& param_list, const TensorList& grad_list,
                    const TensorList& momentum_list, double lr, double momentum,
                    double weight_decay) {
  memory_.reserve(3 * param_list.size() + 8);
  params_ = views("params", param_list, natural_formats(float64), false);
  std::vector<Format> either{float64 ? Format::Float64 : Format::Float32};
  if (!params_.empty()) {
    for (size_t i = 1; i < params_.size(); ++i) {
      if (params_[i].format != params_[0].format) {
        fail(Name{"params", static_cast<int64_t>(i)}, ": expected the dtype of params[0]");
      }
    }
    if (params_[0].format != either[0]) either.push_back(params_[0].format);
  }
  set_grads(grad_list, either);
  momenta_ = views("momenta", momentum_list, either, false);
  memory_.add("params", param_list, params_, blocks_, d_, true);
  memory_.add("momenta", momentum_list, momenta_, blocks_, d_, true);
  job.params = params_.data();
  job.momenta = momenta_.data();
  job.step = true;
  job.lr = lr;
  job.momentum = momentum;
  job.weight_decay = weight_decay;
}

void Call::set_targets(const std::optional<Tensor>& target_norms,
                       const std::optional<Tensor>& directions, const std::optional<Tensor>& norms,
                       bool refresh, double momentum_correction) {
  if (!target_norms) {
    if (refresh) fail("target_norms: expected a tensor to be refreshed, got None");
    return;
  }
  if (!directions || !norms) fail("target_norms: expected directions and norms with it");
  // The CPU takes tensors in rounds, a GPU all at once.
  int64_t least = tiles();
  if (!place_.cuda) {
    least = 0;
    for (int64_t t = 0; t < job.tensors; ++t) least = std::max(least, starts_[t + 1] - starts_[t]);
  }
  const int64_t room = directions->dim() == 3 ? directions->size(0) : 0;
  if (room < least) fail("directions: expected room for ", least, " tiles or more, got ", room);
  check_state("directions", *directions, {room, kTileBlocks, d_}, float64 ? kDouble : kFloat,
              place_);
  check_state("norms", *norms, {tiles(), 2}, kDouble, place_);
  memory_.add("directions", *directions, true);
  memory_.add("norms", *norms, true);
  job.directions = directions->data_ptr();
  job.direction_tiles = room;
  job.norms = static_cast<TileNorms*>(norms->data_ptr());
  job.refresh_targets = refresh;
  job.momentum_correction = momentum_correction;
  if (refresh) {
    check_state("target_norms", *target_norms, {job.tensors}, kDouble, place_);
    memory_.add("target_norms", *target_norms, true);
  } else if (place_.cuda) {
    check_per_tensor("target_norms", *target_norms, place_);
  } else {
    targets_ = per_tensor("target_norms", *target_norms);
    job.target_norms = targets_.data();
    return;
  }
  target_per_tensor = refresh || target_norms->numel() != 1;
  job.target_norms = static_cast<double*>(target_norms->data_ptr());
}

void Call::set_controls(const std::optional<Tensor>& given) {
  if (!given) return;
  if (!place_.cuda) {
    fail("controls: expected None on cpu, where lr and the tiles are the host's to say");
  }
  check_state("controls", *given, {4}, kDouble, place_);
  memory_.add("controls", *given, false);
  controls = static_cast<const double*>(given->data_ptr());
}

}  // namespace mbf
