/* Reports what the program did not free, for FAKECUDA_LEAKS=1. The caller holds
 * the process's lock. */
#pragma once

void leak_report(void);
