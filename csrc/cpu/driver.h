// Jobs over all tiles, in parallel.
#pragma once

#include <functional>

#include "../job.h"

namespace mbf {

// Calls body(first, last) on disjoint ranges that cover begin .. end, each of at least `grain`.
using ParallelFor = void (*)(int64_t begin, int64_t end, int64_t grain,
                             const std::function<void(int64_t, int64_t)>& body);

void run(const TileJob& job, ParallelFor parallel_for);

void run(const DenseJob& job, ParallelFor parallel_for);

// Bytes of the last-level cache, or a guess where the system does not tell.
int64_t last_level_cache_bytes();

}  // namespace mbf
