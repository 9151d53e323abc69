// Runs jobs on the CPU, in parallel over their tiles or tasks.
#pragma once

#include <functional>

#include "../job.h"
#include "../shared_job.h"

namespace mbf {

// Calls body(first, last) for disjoint ranges of at least `grain` that cover begin .. end - 1.
using ParallelFor = void (*)(int64_t begin, int64_t end, int64_t grain,
                             const std::function<void(int64_t, int64_t)>& body);

void run(const TileJob& job, ParallelFor parallel_for);

void run(const DenseJob& job, ParallelFor parallel_for);

void run(const SharedStep& job, ParallelFor parallel_for);

void run(const SharedUpdate& job, ParallelFor parallel_for);

// Bytes of the last-level cache, or a guess if the system does not report it.
int64_t last_level_cache_bytes();

}  // namespace mbf
