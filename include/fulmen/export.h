/* FULMEN_API marks what the shared library exports; everything else is hidden. C99 and C++. */
#pragma once

#define FULMEN_API __attribute__((visibility("default")))
