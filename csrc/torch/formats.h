// The element formats of tensors.
#pragma once

#include <vector>

#include "../job.h"
#include "tensor_checks.h"

namespace mbf {

size_t format_bytes(Format format);

// Sets the format of a tensor of a list. False if it stands for an absent one: an empty bool
// tensor, where that may be. Raises if it is anything else that is not allowed.
bool is_allowed(Name name, const Tensor& tensor, const std::vector<Format>& allowed,
                bool may_be_absent, Format& format);

// float64 statistics serve float64 tensors, float32 statistics all others.
const std::vector<Format>& natural_formats(bool float64);

}  // namespace mbf
