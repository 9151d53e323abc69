#include <algorithm>
#include <cmath>
#include <vector>

#include "driver.h"
#include "isa.h"

namespace mbf {
namespace {

// Multiply-adds below which a second thread costs more than it saves.
constexpr int64_t kThreadWork = 1 << 16;

// Elements of directions that stay in a core's own cache until the second pass.
constexpr int64_t kCachedDirections = 1 << 18;

// The first task of each layer, and one past the last, where layer l has count(l) tasks.
template <class Count>
std::vector<int64_t> first_tasks(int64_t layers, Count count) {
  std::vector<int64_t> first(layers + 1, 0);
  for (int64_t l = 0; l < layers; ++l) first[l + 1] = first[l] + count(l);
  return first;
}

// How many tasks of these layers are worth a thread, given the multiply-adds of all of them.
int64_t grain(const std::vector<int64_t>& first, double work) {
  const double per_task = work / static_cast<double>(std::max<int64_t>(1, first.back()));
  return std::max<int64_t>(1, static_cast<int64_t>(kThreadWork / std::max(per_task, 1.0)));
}

// Multiply-adds of the products with P, or of the outer products.
double work_of(const SharedLayer* layer, int64_t layers) {
  double work = 0;
  for (int64_t l = 0; l < layers; ++l) {
    const double elements = static_cast<double>(layer[l].groups * layer[l].rows * layer[l].columns);
    work += elements * static_cast<double>(layer[l].width + 4);
  }
  return work;
}

// Sets the factors that rescale the directions of layers first .. last - 1 to their target norms,
// which are refreshed first if the job asks for it. Sums are taken in the order of tasks, so that
// threads do not change them.
void set_scales(const SharedPass& pass, int64_t first, int64_t last, std::vector<double>& scales) {
  const SharedStep& job = pass.job;
  for (int64_t l = first; l < last; ++l) {
    if (job.grads[l].absent()) continue;
    SharedNorms sum{};
    for (int64_t task = pass.first_task[l]; task < pass.first_task[l + 1]; ++task) {
      sum.direction += pass.norms[task].direction;
      sum.adam += pass.norms[task].adam;
    }
    if (job.refresh_targets) job.target_norms.values[l] = std::sqrt(sum.adam);
    scales[l] = sum.direction > 0 ? job.target_norms.of(l) / std::sqrt(sum.direction) : 0.0;
  }
}

}  // namespace

void run(const SharedStep& job, ParallelFor parallel_for) {
  const SharedEntryPoints& kernels = current_kernels().shared.of(job.float64);
  const std::vector<int64_t> first = first_tasks(job.layers, [&](int64_t l) {
    const SharedLayer& layer = job.layer[l];
    return layer.groups * ((layer.rows + kSharedRows - 1) / kSharedRows);
  });
  const int64_t tasks = first.back();
  const int64_t least = grain(first, work_of(job.layer, job.layers));
  SharedPass pass{job};
  pass.first_task = first.data();
  if (!job.rescales()) {
    parallel_for(0, tasks, least, [&](int64_t from, int64_t to) { kernels.step(pass, from, to); });
    return;
  }
  std::vector<SharedNorms> norms(tasks);
  std::vector<int64_t> start(job.layers);
  std::vector<double> scales(job.layers);
  pass.norms = norms.data();
  pass.direction_start = start.data();
  pass.scales = scales.data();
  // In rounds of a few layers, whose directions are still in cache for the second pass.
  for (int64_t l = 0, last; l < job.layers; l = last) {
    int64_t room = 0;
    for (last = l; last < job.layers; ++last) {
      const int64_t elements = direction_elements(job.layer[last]);
      if (last > l && room + elements > job.direction_room) break;
      start[last] = room;
      room += elements;
    }
    pass.stream_directions = room > kCachedDirections;
    parallel_for(first[l], first[last], least,
                 [&](int64_t from, int64_t to) { kernels.step(pass, from, to); });
    set_scales(pass, l, last, scales);
    parallel_for(first[l], first[last], std::max<int64_t>(least, 4),
                 [&](int64_t from, int64_t to) { kernels.apply_directions(pass, from, to); });
  }
}

void run(const SharedUpdate& job, ParallelFor parallel_for) {
  const SharedEntryPoints& kernels = current_kernels().shared.of(job.float64);
  const std::vector<int64_t> first = first_tasks(job.layers, [&](int64_t l) {
    const SharedLayer& layer = job.layer[l];
    return layer.rows == 0 ? 0 : layer.groups * strips_of(layer);
  });
  SharedUpdatePass pass{job};
  pass.first_task = first.data();
  parallel_for(0, first.back(), grain(first, work_of(job.layer, job.layers)),
               [&](int64_t from, int64_t to) { kernels.update(pass, from, to); });
}

}  // namespace mbf
