#include "shared_call.h"

#include <algorithm>

#include "call.h"

namespace mbf {

ScalarType SharedCall::check_matrices(const char* name, const Tensor& matrices) {
  const ScalarType type = stats_dtype(name, matrices, place_);
  check_state(name, matrices, {layout_.elements + kMatrixSlack}, type, place_);
  return type;
}

void SharedCall::set_stats(const Tensor& stats, const Tensor& weights, const Tensor& left_out) {
  update_.float64 = check_matrices("stats", stats) == ScalarType::Double;
  check_state("weights", weights, {layout_.blocks}, ScalarType::Double, place_);
  check_state("left_out", left_out, {layout_.blocks}, ScalarType::Long, place_);
  memory_.add("stats", stats, true);
  memory_.add("weights", weights, true);
  memory_.add("left_out", left_out, true);
  update_.layers = layers();
  update_.layer = layout_.layers.data();
  update_.stats = stats.data_ptr();
  update_.weights = static_cast<double*>(weights.data_ptr());
  update_.left_out = static_cast<int64_t*>(left_out.data_ptr());
}

void SharedCall::set_inverse(const Tensor& inverse) {
  step_.float64 = check_matrices("inverse", inverse) == ScalarType::Double;
  memory_.add("inverse", inverse, false);
  step_.layers = layers();
  step_.layer = layout_.layers.data();
  step_.inverse = inverse.data_ptr();
}

std::vector<RowTensor> SharedCall::views(const char* name, const TensorList& tensors,
                                         const std::vector<Format>& allowed, bool may_be_absent,
                                         bool written) {
  std::vector<RowTensor> found = row_views(name, tensors, layout_, allowed, may_be_absent);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Name where{name, static_cast<int64_t>(i)};
    const bool absent = may_be_absent && tensors[i].scalar_type() == ScalarType::Bool;
    if (absent) continue;
    if (place_.cuda) check_place(where, tensors[i], place_);
    memory_.add(where, tensors[i], written);
  }
  return found;
}

void SharedCall::set_update(const TensorList& grads, const TensorList& squares,
                            const std::vector<int64_t>& blocks, double beta) {
  const std::vector<Format>& formats = natural_formats(update_.float64);
  grads_ = views("grads", grads, formats, true, false);
  update_.grads = grads_.data();
  if (!squares.empty()) {
    squares_ = views("squares", squares, formats, false, true);
    update_.squares = squares_.data();
  }
  const bool fits =
      blocks.size() == 2 && 0 <= blocks[0] && blocks[0] <= blocks[1] && blocks[1] <= layout_.blocks;
  if (!fits) fail("blocks: expected the first and last of 0 to ", layout_.blocks, " blocks");
  update_.first = blocks[0];
  update_.last = blocks[1];
  check_unit_interval("beta", beta);
  update_.beta = beta;
}

void SharedCall::set_step(const TensorList& params, const TensorList& grads,
                          const TensorList& momenta, const std::vector<double>& scalars) {
  step_.scalars = step_scalars(scalars);
  memory_.reserve(3 * params.size() + 8);
  const std::vector<Format>& formats = natural_formats(step_.float64);
  params_ = views("params", params, formats, false, true);
  grads_ = views("grads", grads, formats, true, false);
  momenta_ = views("momenta", momenta, formats, false, true);
  step_.params = params_.data();
  step_.grads = grads_.data();
  step_.momenta = momenta_.data();
}

void SharedCall::set_targets(const std::optional<Tensor>& target_norms, bool refresh,
                             const TensorList& squares, const std::optional<Tensor>& weights,
                             const std::optional<Tensor>& directions) {
  if (!squares.empty()) {
    squares_ = views("squares", squares, natural_formats(step_.float64), false, false);
  }
  if (!target_norms) {
    if (refresh) fail("target_norms: expected a tensor to be refreshed, got None");
    return;
  }
  if (!directions) fail("target_norms: expected directions with it");
  int64_t least = 0;
  for (const SharedLayer& layer : layout_.layers) {
    const int64_t needed = direction_elements(layer);
    least = place_.cuda ? least + needed : std::max(least, needed);
  }
  const int64_t room = directions->dim() == 1 ? directions->size(0) : 0;
  if (room < least) fail("directions: expected room for ", least, " numbers or more, got ", room);
  check_state("directions", *directions, {room},
              step_.float64 ? ScalarType::Double : ScalarType::Float, place_);
  memory_.add("directions", *directions, true);
  step_.directions = directions->data_ptr();
  step_.direction_room = room;

  const int64_t count = target_norms->numel();
  if (count != layers() && (refresh || count != 1)) {
    fail("target_norms: expected ", layers(), " values, got ", count);
  }
  check_state("target_norms", *target_norms, {count}, ScalarType::Double, place_);
  memory_.add("target_norms", *target_norms, refresh);
  step_.target_norms = {static_cast<double*>(target_norms->data_ptr()), count == 1 && layers() != 1,
                        place_.cuda};
  step_.refresh_targets = refresh;
  if (!refresh) return;
  if (!weights) fail("weights: expected a tensor where target norms are refreshed, got None");
  check_state("weights", *weights, {layout_.blocks}, ScalarType::Double, place_);
  memory_.add("weights", *weights, false);
  step_.weights = static_cast<const double*>(weights->data_ptr());
  if (squares.empty() && layout_.tensors > 0) fail("squares: expected them, got an empty list");
  step_.squares = squares_.data();
}

void SharedCall::set_controls(const std::optional<Tensor>& controls) {
  if (!controls) return;
  step_.controls = check_controls(*controls, place_);
  memory_.add("controls", *controls, false);
}

const SharedUpdate& SharedCall::checked_update() {
  memory_.check(place_);
  return update_;
}

const SharedStep& SharedCall::checked_step() {
  memory_.check(place_);
  return step_;
}

}  // namespace mbf
