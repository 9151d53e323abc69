// The structs that kernels take by value: the pointers, counts and scalars of many tensors.
//
// Plain C++, shared by the kernels and by plan.cpp, which fills them on the host. From CUDA 12.1 on
// a kernel takes up to 32,764 bytes, enough for some 450 tensors per launch.
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

// The kind of pair that serves them.
constexpr int pair_kind(int block_size) {
  int kind = 0;
  while (block_size > kPairs[kind].max_block) ++kind;
  return kind;
}

constexpr bool pairs_serve_all_sizes() {
  int served = kMaxThreadBlock;
  for (const PairShape& pair : kPairs) {
    if (pair.max_block <= served || pair.columns % 2 != 0) return false;
    if (2 * pair.columns < pair.max_block) return false;
    served = pair.max_block;
  }
  return served == kMaxBlock;
}
static_assert(pairs_serve_all_sizes(), "kPairs: a size is missing, or a pair is too small");

// Threads per thread block of pairs: a warp has a tile.
constexpr int kPairThreads = 32 * kPairTiles;

// The lanes of a team have the bands of its largest block, and the patches of up to half a turn.
constexpr bool teams_serve_all_sizes() {
  int served = kMaxThreadBlock;
  for (const TeamShape& team : kTeams) {
    const int bands = (team.max_block + kPatch - 1) / kPatch;
    if (team.max_block <= served || 32 % team.lanes != 0) return false;
    if (bands > team.lanes || bands / 2 + 1 > team.patches) return false;
    served = team.max_block;
  }
  return served == kMaxBlock;
}
static_assert(teams_serve_all_sizes(), "kTeams: a size is missing, or a team is too small");

// Distance in shared memory between the first elements of neighbouring blocks, in floats: odd, so
// that lanes which each read their own block access different banks.
constexpr int stage_stride(int d) { return d | 1; }

// The same where lanes read four elements at a time: an odd multiple of four.
constexpr int tile_stride(int d) { return ((d + 3) / 4 | 1) * 4; }

// A vector of each of a tile's blocks in shared memory, in floats.
constexpr int pair_stage(int d) { return kTileBlocks * tile_stride(d); }

// The shared memory of a team, in floats: slots of a patch each, of which eight lanes read four
// neighbouring ones from different banks. The last one has the patch of the pivots.
constexpr int kTeamSlot = kPatch * kPatch + 4;
constexpr int team_floats(int lanes, int patches) {
  return (lanes + patches + 1) * kTeamSlot + (lanes < 8 ? 16 : 0);
}

// Before and after, the same memory has rows of 16 triangles, the chunk, of which neighbouring
// elements of a block are 17 floats apart: all rows of blocks up to 32.
constexpr int kRowStride = kTileBlocks + 1;
constexpr int chunk_elements(const TeamShape& team, int d) {
  constexpr int kMost = 528;
  const int padded = (d + kPatch - 1) / kPatch * kPatch;
  const int triangle = padded * (padded + 1) / 2;
  const int least = kTileBlocks * team_floats(team.lanes, team.patches) / kRowStride;
  const int wanted = triangle < kMost ? triangle : kMost;
  return wanted > least ? wanted : least;
}

constexpr int team_bytes(const TeamShape& team, int d) {
  const int slots = kTileBlocks * team_floats(team.lanes, team.patches);
  const int chunk = kRowStride * chunk_elements(team, d);
  return (slots > chunk ? slots : chunk) * 4;
}

constexpr bool team_memory_suffices() {
  for (const TeamShape& team : kTeams) {
    if (team_bytes(team, team.max_block) > 48 << 10) return false;  // what every device has
    if (chunk_elements(team, team.max_block) < kPatch * team.max_block) return false;  // a band
    if (team_floats(team.lanes, team.patches) < tile_stride(team.max_block)) return false;  // D
  }
  return true;
}
static_assert(team_memory_suffices());

// The strides of a BlockView, in elements.
struct Strides {
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;
  int64_t element_stride;
};

// Natural::place of a contiguous tensor. Other tensors have the place of their strides in the pool,
// counted from 1 and from the end.
constexpr uint8_t kContiguous = 0;

// Format and layout of one of a segment's tensors.
struct Natural {
  Format format;
  uint8_t place;
};

// Consecutive tiles of one tensor; a tensor too large for 32-bit counts has several.
struct Segment {
  void* params;
  const void* grads;
  void* momenta;
  int64_t tile;           // its first tile in the state
  int64_t block;          // its first block in the tensor
  double damping;         // unless it comes from the device
  uint32_t blocks;        // not counting padding
  uint32_t first_unit;    // its first thread block in the grid
  uint32_t tensor;        // index in the lists of the call
  uint32_t tensor_units;  // thread blocks of the whole tensor
  Natural natural[3];     // params, grads, momenta
};

// The same for the second pass of a rescaled step.
struct ApplySegment {
  void* params;
  int64_t tile;
  int64_t block;
  int64_t tensor_tile;  // first tile of the whole tensor, which has its norm
  uint32_t blocks;
  uint32_t first_unit;
  uint32_t tensor;
  Natural natural[1];  // params
};

// One tensor whose damping is relative.
struct DampedTensor {
  int64_t tile;
  int64_t tiles;
  double elements;  // block_size times blocks
  double damping;
  uint32_t tensor;
};

// A header and a pool: a list of entries at its front, the strides they refer to at its end.
template <class HeaderType, class EntryType, class StrideType = Strides>
struct Parameters {
  using Header = HeaderType;
  using Entry = EntryType;
  using Stride = StrideType;
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
  float* directions;       // with target norms, otherwise null
  TileNorms* norms;        // see tensor_norms.cuh
  const double* damping;   // on the device, or null: then the segments have it
  const double* controls;  // [lr, momentum_correction, update, invert] on the device, or null
  TileRange update, invert;
  double beta;
  float short_beta, short_rest;  // beta and 1 - beta, rounded
  StepScalars<float> scalars;
  int32_t block_size;
  uint32_t over_block_size;  // 2^32 / block_size rounded up: i / block_size is the upper half of
                             // its product with i, for i below 2^16
  bool step;
  bool short_inverse;       // P is stored in bfloat16, otherwise in float32
  bool damping_per_tensor;  // damping has one value per tensor, otherwise one for all
  bool debias;
  bool refresh_targets;
};

struct ApplyHeader {
  const float* directions;
  const TileNorms* norms;
  double* target_norms;
  const double* controls;
  StepScalars<double> scalars;
  int32_t block_size;
  int32_t unit_tiles;  // tiles per thread block
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
