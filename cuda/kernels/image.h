/*
 * The device code in this binary: a fat binary by nvcc, or, where there was
 * none, a byte that nobody loads but the double of the driver, which has
 * kernels of its own.
 */
#pragma once

extern const unsigned char kernels_image[];
/* The toolkit that made it, as drivers say their version (13000 is 13.0); 0:
 * none did. */
extern const int kernels_image_toolkit;
