/*
 * The device code in this binary. It is a fat binary by nvcc. In a build
 * without nvcc it is a single byte, which only the fake driver accepts, since
 * it has kernels of its own.
 */
#pragma once

extern const unsigned char kernels_image[];
/* The version of the toolkit that made it, in the driver's format (13000 is
 * 13.0), or 0 if there was no toolkit. */
extern const int kernels_image_toolkit;
