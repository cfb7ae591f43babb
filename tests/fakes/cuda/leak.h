/* What the program did not free, for FAKECUDA_LEAKS=1. With the process's
 * lock. */
#pragma once

void leak_report(void);
