/* The driver's interface, as the fake exports it. */
#pragma once
#pragma GCC visibility push(default)
#include "cuda/driver_api.h"
#pragma GCC visibility pop
