/* FULMEN_API marks what the shared library exports; everything else is hidden. C99 and C++. */
#pragma once

#if !defined(_WIN32)
#define FULMEN_API __attribute__((visibility("default")))
#elif defined(FULMEN_BUILDING)
#define FULMEN_API __declspec(dllexport)
#elif defined(FULMEN_STATIC)
#define FULMEN_API
#else
#define FULMEN_API __declspec(dllimport)
#endif
