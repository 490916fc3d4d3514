/* The calling thread's last error in words. */
#ifndef RINGSTEP_TAG_TEXT_H
#define RINGSTEP_TAG_TEXT_H

/* Note a text and return code. */
int rt_fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));

#endif
