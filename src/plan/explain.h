// Why a plan has its kernel and not another one, in words.
#pragma once

#include <string>

#include "fulmen/backend.h"
#include "fulmen/plan.h"

namespace fulmen {

// Every kernel of the backend, each with the reason why it does not run the problem.
std::string no_kernel_message(const Backend& backend, const Problem& problem,
                              const std::string& device);
// Every kernel that could not be prepared, each with its reason: none is left.
std::string refusals(const Plan::Impl& impl);
// Logs a line for each better kernel that could not be prepared.
void log_refusals(const Plan::Impl& impl);
// Logs which kernel was chosen and why, with FLASH_ATTENTION_DEBUG set.
void log_choice(const Plan::Impl& impl);

}  // namespace fulmen
