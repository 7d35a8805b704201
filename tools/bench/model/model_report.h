// Modelled rows as a table and as JSON.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/model/model.h"

namespace fulmen::tools {

std::string model_head(const ChipRates& chip);
std::string model_line(const ModelledRow& row);
std::string model_json(const ChipRates& chip, const std::vector<ModelledRow>& rows);

}  // namespace fulmen::tools
