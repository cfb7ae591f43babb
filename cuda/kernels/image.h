/*
 * The device code in this binary: a fat binary by nvcc, or, where there was
 * none, a byte that nobody loads but the double of the driver, which has
 * kernels of its own.
 */
#pragma once
#include <stdbool.h>

extern const unsigned char kernels_image[];
extern const bool kernels_image_is_real;
