/* The only symbols that leave the library are marked with this. */
#ifndef RINGSTEP_EXPORT_H
#define RINGSTEP_EXPORT_H

#define RS_EXPORT __attribute__((visibility("default")))
#define RS_PLUGIN_NAME "ringstep"

#endif
