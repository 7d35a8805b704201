// Which nodes of a model are Fulmen's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "node.h"

namespace fulmen_ort {

// An input or output, and why it is not served, or "".
struct Argument {
  const char *name, *unserved;
};

struct Registered {
  Operator op;
  const char *type, *domain;
  int first, last;                        // versions of the operator
  std::vector<Argument> inputs, outputs;  // in the operator's order
  // Attributes of any value: those that are served, those that say something only of an input or
  // output that is not served, and those that refusal() looks at.
  std::vector<std::string_view> attributes;
};

const std::vector<Registered>& operators();

// Why the node is left to another provider, in words, or "".
std::string refusal(const Registered& known, const OrtNode* node,
                    const std::vector<const OrtValueInfo*>& inputs,
                    const std::vector<const OrtValueInfo*>& outputs);

// What a kernel's attributes say.
Attributes attributes_of(Operator op, const OrtKernelInfo* info);

}  // namespace fulmen_ort
