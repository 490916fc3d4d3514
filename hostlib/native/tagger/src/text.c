#include "text.h"

#include <stdarg.h>
#include <stdio.h>

#include "ringstep_tag.h"

static _Thread_local char last_error[512] = "no error";

int rt_fail(int code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof(last_error), format, arguments);
    va_end(arguments);
    return code;
}

const char* rt_last_error(void) { return last_error; }
