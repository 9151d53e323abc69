#include "call.h"

#include <algorithm>
#include <cstring>

namespace mbf {
namespace {

constexpr ScalarType kFloat = ScalarType::Float;
constexpr ScalarType kDouble = ScalarType::Double;
constexpr ScalarType kBFloat16 = ScalarType::BFloat16;

int64_t triangle_elements(int64_t d) { return d * (d + 1) / 2; }

void check_served(const char* name, ScalarType type, const Place& place) {
  if (type == kDouble && place.cuda) {
    fail(name, ": float64 is not served by the CUDA kernels; use the torch backend");
  }
}

// Whether the tiles of every tensor follow those of the tensor before it.
bool is_consistent(const int64_t* starts, const int64_t* blocks, int64_t tensors) {
  constexpr int64_t kMost = int64_t{1} << 56;  // below it no sum or product here overflows
  if (starts[0] != 0) return false;
  for (int64_t t = 0; t < tensors; ++t) {
    if (blocks[t] < 0 || blocks[t] > kMost || starts[t] > kMost) return false;
    const int64_t tiles = (blocks[t] + kTileBlocks - 1) / kTileBlocks;
    if (starts[t + 1] != starts[t] + tiles) return false;
  }
  return true;
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

StepScalars<double> step_scalars(const std::vector<double>& values) {
  if (values.size() != kStepScalars) {
    fail("scalars: expected ", kStepScalars, " values, got ", values.size());
  }
  StepScalars<double> scalars;
  std::memcpy(&scalars, values.data(), sizeof scalars);
  return scalars;
}

const double* check_controls(const Tensor& controls, const Place& place) {
  if (!place.cuda) {
    fail("controls: expected None on cpu, where lr and the tiles are the host's to say");
  }
  check_state("controls", controls, {4}, kDouble, place);
  return static_cast<const double*>(controls.data_ptr());
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

Call::Call(Place place, int64_t block_size, const Tensor& layout) : place_(place), d_(block_size) {
  check_block_size(block_size);
  const int64_t columns = layout.dim() == 2 ? layout.size(1) : 0;
  check_state("layout", layout, {2, std::max<int64_t>(columns, 1)}, ScalarType::Long, Place{});
  const auto* starts = static_cast<const int64_t*>(layout.data_ptr());
  job_.block_size = static_cast<int>(block_size);
  job_.tensors = columns - 1;
  job_.tile_start = starts;
  job_.blocks = starts + columns;
  if (!is_consistent(job_.tile_start, job_.blocks, job_.tensors)) {
    fail("layout: expected the first tile of each tensor above its count of blocks");
  }
}

void Call::set_stats(const Tensor& stats, const Tensor& tallies, bool written) {
  const ScalarType type = stats_dtype("stats", stats, place_);
  job_.float64 = type == kDouble;
  stats_known_ = true;
  check_state("stats", stats, {tiles(), triangle_elements(d_), kTileBlocks}, type, place_);
  check_state("tallies", tallies, {tiles(), 2}, kDouble, place_);
  memory_.add("stats", stats, written);
  memory_.add("tallies", tallies, written);
  job_.stats = stats.data_ptr();
  job_.tallies = static_cast<Tally*>(tallies.data_ptr());
}

void Call::set_inverse(const Tensor& inverse, bool written) {
  const ScalarType type = inverse.scalar_type();
  const bool known = type == kFloat || type == kBFloat16 || type == kDouble;
  const bool float64 = stats_known_ && job_.float64;
  if (!known || (stats_known_ && float64 != (type == kDouble))) {
    fail("inverse: expected ", float64 ? "float64" : "float32 or bfloat16", ", got ",
         dtype_name(type));
  }
  check_served("inverse", type, place_);
  job_.float64 = type == kDouble;
  check_state("inverse", inverse, {tiles(), triangle_elements(d_), kTileBlocks}, type, place_);
  // Streaming stores take whole lines. torch's own allocations are aligned.
  const auto address = reinterpret_cast<uintptr_t>(inverse.data_ptr());
  if (written && !place_.cuda && address % 64 != 0) {
    fail("inverse: expected memory aligned to 64 bytes");
  }
  memory_.add("inverse", inverse, written);
  job_.inverse = inverse.data_ptr();
  job_.inverse_format = type == kBFloat16 ? Format::BFloat16
                        : type == kDouble ? Format::Float64
                                          : Format::Float32;
}

TileRange Call::range(const char* name, const std::vector<int64_t>& ends) const {
  const bool fits = ends.size() == 2 && 0 <= ends[0] && ends[0] <= ends[1] && ends[1] <= tiles();
  if (!fits) fail(name, ": expected the first and last of 0 to ", tiles(), " tiles");
  return {ends[0], ends[1]};
}

// One value for each tensor, or one for all of them.
PerTensor Call::per_tensor(const char* name, const Tensor& values, const Place& where) const {
  const int64_t count = values.numel();
  if (count != 1 && count != job_.tensors) {
    fail(name, ": expected 1 or ", job_.tensors, " values, got ", count);
  }
  check_state(name, values, {count}, kDouble, where);
  return {static_cast<double*>(values.data_ptr()), count == 1 && job_.tensors != 1, where.cuda};
}

void Call::set_update(const char* name, const std::vector<int64_t>& tiles, double beta) {
  job_.update = range(name, tiles);
  job_.beta = beta;
  // A step that updates nothing does not use beta.
  if (!job_.step || !job_.update.empty()) check_unit_interval("beta", beta);
}

void Call::set_inversion(const char* name, const std::vector<int64_t>& tiles, const Tensor& info,
                         const Tensor& damping, bool relative, bool debias) {
  check_state("info", info, {this->tiles(), kTileBlocks}, ScalarType::Int, place_);
  memory_.add("info", info, true);
  job_.info = static_cast<int32_t*>(info.data_ptr());
  job_.invert = range(name, tiles);
  if (job_.step && job_.invert.empty()) return;
  job_.relative_damping = relative;
  job_.debias = debias;
  const bool host_to_device = place_.cuda && damping.is_cpu();
  job_.damping = per_tensor("damping", damping, host_to_device ? Place{} : place_);
  if (!host_to_device) memory_.add("damping", damping, false);
  if (job_.damping.on_device) return;
  for (int64_t i = 0; i < damping.numel(); ++i) check_damping(job_.damping.values[i]);
}

std::vector<BlockView> Call::views(const char* name, const TensorList& tensors,
                                   const std::vector<Format>& allowed, bool may_be_absent) {
  std::vector<BlockView> found =
      block_views(name, tensors, d_, job_.blocks, job_.tensors, allowed, may_be_absent);
  if (!place_.cuda) return found;  // the dispatcher has checked the device
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool absent = may_be_absent && found[i].data == nullptr;
    if (!absent) check_place(Name{name, static_cast<int64_t>(i)}, tensors[i], place_);
  }
  return found;
}

void Call::set_grads(const TensorList& tensors) {
  set_grads(tensors, natural_formats(job_.float64));
}

void Call::set_grads(const TensorList& tensors, const std::vector<Format>& allowed) {
  grads_ = views("grads", tensors, allowed, true);
  memory_.add("grads", tensors, grads_, false);
  job_.grads = grads_.data();
}

// All parameters have one format. Gradients and momenta have that one or that of the statistics.
void Call::set_step(const TensorList& params, const TensorList& grads, const TensorList& momenta,
                    const std::vector<double>& scalars) {
  job_.scalars = step_scalars(scalars);
  memory_.reserve(3 * params.size() + 8);
  params_ = views("params", params, natural_formats(job_.float64), false);
  std::vector<Format> either{job_.float64 ? Format::Float64 : Format::Float32};
  if (!params_.empty()) {
    for (size_t i = 1; i < params_.size(); ++i) {
      if (params_[i].format != params_[0].format) {
        fail(Name{"params", static_cast<int64_t>(i)}, ": expected the dtype of params[0]");
      }
    }
    if (params_[0].format != either[0]) either.push_back(params_[0].format);
  }
  set_grads(grads, either);
  momenta_ = views("momenta", momenta, either, false);
  memory_.add("params", params, params_, true);
  memory_.add("momenta", momenta, momenta_, true);
  job_.params = params_.data();
  job_.momenta = momenta_.data();
  job_.step = true;
}

void Call::set_targets(const std::optional<Tensor>& target_norms, bool refresh,
                       const std::optional<Tensor>& directions,
                       const std::optional<Tensor>& norms) {
  if (!target_norms) {
    if (refresh) fail("target_norms: expected a tensor to be refreshed, got None");
    return;
  }
  if (!directions || !norms) fail("target_norms: expected directions and norms with it");
  // The CPU steps in rounds and needs room for the largest tensor; a GPU steps all tensors at once.
  int64_t least = tiles();
  if (!place_.cuda) {
    least = 0;
    for (int64_t t = 0; t < job_.tensors; ++t) {
      least = std::max(least, job_.tile_start[t + 1] - job_.tile_start[t]);
    }
  }
  const int64_t room = directions->dim() == 3 ? directions->size(0) : 0;
  if (room < least) fail("directions: expected room for ", least, " tiles or more, got ", room);
  check_state("directions", *directions, {room, kTileBlocks, d_}, job_.float64 ? kDouble : kFloat,
              place_);
  check_state("norms", *norms, {tiles(), 2}, kDouble, place_);
  memory_.add("directions", *directions, true);
  memory_.add("norms", *norms, true);
  job_.directions = directions->data_ptr();
  job_.direction_tiles = room;
  job_.norms = static_cast<TileNorms*>(norms->data_ptr());
  job_.refresh_targets = refresh;
  if (refresh) check_state("target_norms", *target_norms, {job_.tensors}, kDouble, place_);
  job_.target_norms = per_tensor("target_norms", *target_norms, place_);
  memory_.add("target_norms", *target_norms, refresh);
}

void Call::set_controls(const std::optional<Tensor>& controls) {
  if (!controls) return;
  job_.controls = check_controls(*controls, place_);
  memory_.add("controls", *controls, false);
}

const TileJob& Call::checked() {
  memory_.check(place_);
  return job_;
}

}  // namespace mbf
