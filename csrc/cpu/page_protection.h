// Whether memory may be written, asked of the system without touching the memory itself.
#pragma once

#include <cstdint>
#include <vector>

namespace mbf {

// Consecutive addresses with one protection.
struct Mapping {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool writable = true;

  bool contains(uintptr_t address) const { return begin <= address && address < end; }
};

// Index of the first of these addresses that is mapped read-only, or -1. An address that the system
// says nothing about counts as writable.
int64_t first_read_only(const std::vector<uintptr_t>& addresses);

// The two ways to ask, for tests. Linux from 6.11 on answers for one address at a time; elsewhere
// the list of all mappings is read, and what it called writable is not asked about again.
bool query_mapping(uintptr_t address, Mapping& mapping);
bool find_in_list(uintptr_t address, Mapping& mapping);

}  // namespace mbf
