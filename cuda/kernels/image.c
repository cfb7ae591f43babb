#include "cuda/kernels/image.h"

#ifdef KERNELS_IMAGE_FILE
/* The driver requires an alignment of 8. */
__asm__(".pushsection .rodata\n"
	".balign 16\n"
	".global kernels_image\n"
	".hidden kernels_image\n"
	".type kernels_image, %object\n"
	"kernels_image:\n"
	".incbin \"" KERNELS_IMAGE_FILE "\"\n"
	".size kernels_image, . - kernels_image\n"
	".popsection\n");
const int kernels_image_toolkit = KERNELS_IMAGE_TOOLKIT;
#else
const unsigned char kernels_image[] = {0};
const int kernels_image_toolkit;
#endif
