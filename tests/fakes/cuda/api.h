/* The driver's interface, as what the double exports. */
#pragma once
#pragma GCC visibility push(default)
#include "cuda/driver_api.h"
#pragma GCC visibility pop
