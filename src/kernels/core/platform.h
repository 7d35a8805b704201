// The platform that a kernel is compiled for. Who compiles it names the header
// (gpu/compile/kernel_source.cpp). Included by core/base.h alone.
#pragma once

#include FULMEN_PLATFORM_HEADER
