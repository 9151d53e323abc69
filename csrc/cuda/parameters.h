// What a kernel is passed, by value: pointers and numbers of many tensors in one struct.
//
// Plain C++, shared by the kernels and by plan.cpp, which fills it in on the host. CUDA passes up
// to 32,764 bytes from 12.1 on; one launch then serves some 450 tensors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../job.h"
#include "size_classes.h"

namespace mbf::cuda {

constexpr size_t kParameterBytes = 32760;  // the limit is 32,764; pointers align to 8

// Threads per thread block where every block has one thread.
constexpr int kThreadBlockThreads = kThreadTiles * kTileBlocks;

// The kind of team that serves blocks larger than kMaxThreadBlock.
constexpr int team_kind(int block_size) {
  int kind = 0;
  while (block_size > kTeams[kind].max_block) ++kind;
  return kind;
}

// Each kind of team holds the triangle of its largest block; together they serve all larger blocks.
constexpr bool teams_serve_all_sizes() {
  int served = kMaxThreadBlock;
  for (const TeamShape& team : kTeams) {
    const int bands = (team.max_block + kPatch - 1) / kPatch;
    if (team.max_block <= served || 32 % team.lanes != 0) return false;
    if (bands * (bands + 1) / 2 > team.lanes * team.patches) return false;
    served = team.max_block;
  }
  return served == kMaxBlock;
}
static_assert(teams_serve_all_sizes());

// A block's numbers in shared memory are this far apart from the next one's: an odd number of
// words, so that lanes that read theirs meet different banks.
constexpr int stage_stride(int d) { return d | 1; }

// Parts of a team kernel's shared memory, in floats.
struct TeamMemory {
  int stage;    // D, M or P M of 16 blocks, three times
  int rows;     // four rows of the triangles, a number of 16 blocks every 17
  int columns;  // the pivot's column of 16 blocks, twice

  constexpr explicit TeamMemory(int d) {
    const int padded = (d + kPatch - 1) / kPatch * kPatch;
    stage = kTileBlocks * stage_stride(d);
    rows = kPatch * padded * (kTileBlocks + 1);
    columns = kTileBlocks * column_stride(padded);
  }
  // Aligned to vectors of four, and blocks of a warp apart by four banks.
  static constexpr int column_stride(int padded) { return padded + kPatch; }
  constexpr int bytes() const { return (rows + 2 * columns + 3 * stage) * 4; }
};
static_assert(TeamMemory(kMaxBlock).bytes() <= 48 << 10);  // what every device has

// The strides of a BlockView, in numbers.
struct Strides {
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;
  int64_t element_stride;
};

// Where one of a segment's tensors keeps its blocks: contiguous, or place - 1 in the strides.
constexpr uint8_t kContiguous = 0;

struct Natural {
  Format format;
  uint8_t place;
};

// Consecutive tiles of one tensor; a tensor too large for 32-bit counts has several.
struct Segment {
  void* params;
  const void* grads;
  void* momenta;
  int64_t tile;         // its first tile in the state
  int64_t block;        // its first block in the tensor
  double damping;       // unless it comes from the device
  uint32_t blocks;      // not counting padding
  uint32_t first_unit;  // thread blocks from this one on are its own
  uint32_t tensor;      // place in the lists of the call
  Natural natural[3];   // params, grads, momenta
};

// The same for the second pass of a step with target norms.
struct ApplySegment {
  void* params;
  int64_t tile;
  int64_t block;
  int64_t tensor_tile;   // of the whole tensor, whose norm is wanted:
  int64_t tensor_tiles;  // first tile and count
  uint32_t blocks;
  uint32_t first_unit;
  uint32_t tensor;
  Natural natural[1];  // params
};

// One tensor whose damping is relative.
struct DampedTensor {
  int64_t tile;
  int64_t tiles;
  double numbers;  // block_size times blocks
  double damping;
  uint32_t tensor;
};

// A list of entries, with the strides they refer to behind it.
template <class HeaderType, class EntryType>
struct Parameters {
  using Header = HeaderType;
  using Entry = EntryType;
  static constexpr size_t kPool = (kParameterBytes - sizeof(Header) - 8) / 8 * 8;

  Header job;
  uint32_t count;    // entries
  uint32_t strides;  // distinct strides, at the end of the pool
  alignas(8) unsigned char pool[kPool];
};

struct RunHeader {
  float* stats;
  Tally* tallies;
  void* inverse;
  int32_t* info;
  float* directions;  // with target norms, otherwise null
  TileNorms* norms;   // that of the first tile of a thread block holds the sums of all its tiles
  const double* damping;   // on the device, or null: then the segments have it
  const double* controls;  // [lr, momentum_correction, update, invert] on the device, or null
  TileRange update, invert;
  double beta;
  float short_beta, short_rest;  // beta and 1 - beta, rounded
  float lr, momentum, weight_decay, momentum_correction;
  int32_t block_size;
  bool step;
  bool short_inverse;       // bfloat16, otherwise float32
  bool damping_per_tensor;  // or one for all
  bool debias;
  bool refresh_targets;
};

struct ApplyHeader {
  const float* directions;
  const TileNorms* norms;
  double* target_norms;
  const double* controls;
  double lr, weight_decay;
  int32_t block_size;
  int32_t norm_tiles;  // tiles whose norms are summed in that of their first
  int32_t unit_tiles;  // tiles of one thread block
  bool target_per_tensor;
  bool refresh_targets;
};

struct DampingHeader {
  const Tally* tallies;
  const double* damping;  // on the device, or null
  double* out;            // per tensor, absolute
  bool damping_per_tensor;
};

using RunParameters = Parameters<RunHeader, Segment>;
using ApplyParameters = Parameters<ApplyHeader, ApplySegment>;
using DampingParameters = Parameters<DampingHeader, DampedTensor>;

struct DenseParameters {
  const float* matrices;
  float* inverses;
  int32_t* info;
  int64_t count;
  float damping;
  int32_t block_size;
};

static_assert(sizeof(RunParameters) <= kParameterBytes);
static_assert(sizeof(ApplyParameters) <= kParameterBytes);
static_assert(sizeof(DampingParameters) <= kParameterBytes);

}  // namespace mbf::cuda
