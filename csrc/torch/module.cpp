// The Python module: what was built, the choice of the instruction set, and what Python cannot ask
// the system itself. The operators are in schemas.cpp and operators.h.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "../cpu/driver.h"
#include "../cpu/huge_pages.h"
#include "../cpu/isa.h"
#include "../cpu/page_protection.h"
#include "../job.h"

namespace {

// MBF_CUDA_ARCHITECTURES is a list such as "sm_80,sm_90", or "" in a build without CUDA.
std::vector<std::string> cuda_architectures() {
  std::vector<std::string> names;
  std::istringstream list(MBF_CUDA_ARCHITECTURES);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Compiled kernels of mbf_kernels. The operators are in torch.ops.mbf_kernels.";
  m.attr("max_block_size") = mbf::kMaxBlock;
  m.attr("tile_blocks") = mbf::kTileBlocks;
  m.attr("step_scalars") =
      std::vector<std::string>(std::begin(mbf::kStepScalarNames), std::end(mbf::kStepScalarNames));
  m.attr("torch_version") = TORCH_VERSION;
  m.attr("compiler") = __VERSION__;
  m.attr("cuda_architectures") = cuda_architectures();
  m.def("compiled_isas", &mbf::compiled_isas, "Instruction sets compiled into this binary.");
  m.def("runnable_isas", &mbf::runnable_isas, "Those of them this machine can run.");
  m.def(
      "current_isa", [] { return std::string(mbf::current_kernels().isa); },
      "The instruction set in use.");
  m.def("select_isa", &mbf::select_isa, pybind11::arg("name"),
        "Use this instruction set from now on; '' for the best one.");
  m.def("last_level_cache_bytes", &mbf::last_level_cache_bytes);
  m.def("advise_huge_pages", &mbf::advise_huge_pages, pybind11::arg("data"),
        pybind11::arg("bytes"));
  m.def(
      "memory_is_writable",
      [](uintptr_t data, size_t bytes) {
        return bytes == 0 || mbf::first_read_only({data, data + bytes - 1}) < 0;
      },
      pybind11::arg("data"), pybind11::arg("bytes"));
  m.def(
      "mapping_of",
      [](uintptr_t address, bool from_list) -> std::optional<std::tuple<size_t, size_t, bool>> {
        mbf::Mapping found;
        const bool known =
            from_list ? mbf::find_in_list(address, found) : mbf::query_mapping(address, found);
        if (!known) return std::nullopt;
        return std::tuple<size_t, size_t, bool>{found.begin, found.end, found.writable};
      },
      pybind11::arg("address"), pybind11::arg("from_list"),
      "(begin, end, writable) of the mapping of an address; None where the system does not say.");
}
