// The size classes of the CUDA kernels: how many threads work on a block of a given size.
//
// The only place that states these values. units.py parses this file for the build, the tests and
// the benchmarks: keep one constant or one row of a table per line, as integer literals.
#pragma once

#include <iterator>

namespace mbf::cuda {

// Blocks up to this size get one thread each, which holds the triangle in its registers.
constexpr int kMaxThreadBlock = 12;

// Tiles per thread block where every block has one thread: four warps with two tiles each.
constexpr int kThreadTiles = 8;

// Each larger block is updated and stepped by two lanes of a warp, which has one tile. Their
// registers have the elements of a few vectors.
struct PairShape {
  int max_block;  // the largest block size it serves
  int columns;    // per lane; a multiple of two
};

// The kinds of pair, by ascending block size.
constexpr PairShape kPairs[] = {
    {28, 14},
    {64, 32},
};
constexpr int kPairKinds = std::size(kPairs);

// Tiles, and warps, per thread block of pairs.
constexpr int kPairTiles = 4;

// It is inverted by a team of lanes of one warp, which hold the triangle in their registers as
// square patches of this size. A thread block has the 16 teams of one tile.
constexpr int kPatch = 4;

struct TeamShape {
  int max_block;  // the largest block size it serves
  int lanes;      // per team
  int patches;    // per lane
};

// The kinds of team, by ascending block size.
constexpr TeamShape kTeams[] = {
    {16, 4, 3},
    {32, 8, 5},
    {52, 16, 7},
    {64, 16, 9},
};
constexpr int kTeamKinds = std::size(kTeams);

// Threads per thread block of the kernels that work on whole tensors, whatever the block size.
constexpr int kTensorThreads = 256;

}  // namespace mbf::cuda
