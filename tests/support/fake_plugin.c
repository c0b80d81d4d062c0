// A PJRT plugin that misbehaves as FAKE_PLUGIN says: too_old, too_new, missing, error, abort, hang, options (which
// it tells); compile_error, execute_error, late_error and stuck (the first launch runs until it is released) come up
// with a device, whose executables have one result each; else it comes up and has no devices. Built once, loaded by
// tests through its path.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pjrt_c_api.h"

struct PJRT_Error {
  const char* message;
};

static PJRT_Error refusal = {"the fake chip is on fire"};
static int live_errors = 0;

static int Is(const char* mode) {
  const char* asked = getenv("FAKE_PLUGIN");
  return asked != NULL && strcmp(asked, mode) == 0;
}

static PJRT_Error* Refuse(void) {
  ++live_errors;
  return &refusal;
}

static void ErrorDestroy(PJRT_Error_Destroy_Args* args) { --live_errors; }
static void ErrorMessage(PJRT_Error_Message_Args* args) {
  args->message = args->error->message;
  args->message_size = strlen(args->error->message);
}
static PJRT_Error* ErrorGetCode(PJRT_Error_GetCode_Args* args) {
  args->code = PJRT_Error_Code_UNAVAILABLE;
  return NULL;
}

static PJRT_Error* PluginInitialize(PJRT_Plugin_Initialize_Args* args) {
  if (Is("abort")) abort();
  if (Is("hang")) {
    for (;;) sleep(1000);
  }
  return NULL;
}

static PJRT_Error* PluginAttributes(PJRT_Plugin_Attributes_Args* args) {
  static PJRT_NamedValue version;
  static const int64_t numbers[] = {1, 13, 0};
  version.name = "stablehlo_current_version";
  version.name_size = strlen(version.name);
  version.type = PJRT_NamedValue_kInt64List;
  version.int64_array_value = numbers;
  version.value_size = 3;
  args->attributes = &version;
  args->num_attributes = 1;
  return NULL;
}

// An error that says what options there were.
static PJRT_Error* TellOptions(const PJRT_Client_Create_Args* args) {
  static char text[256];
  static PJRT_Error told = {text};
  size_t n = 0;
  for (size_t i = 0; i < args->num_options; ++i) {
    const PJRT_NamedValue* v = &args->create_options[i];
    n += snprintf(text + n, sizeof text - n, "%.*s=", (int)v->name_size, v->name);
    if (v->type == PJRT_NamedValue_kInt64) n += snprintf(text + n, sizeof text - n, "int %d; ", (int)v->int64_value);
    if (v->type == PJRT_NamedValue_kBool) n += snprintf(text + n, sizeof text - n, "bool %d; ", v->bool_value);
    if (v->type == PJRT_NamedValue_kString)
      n += snprintf(text + n, sizeof text - n, "string %.*s; ", (int)v->value_size, v->string_value);
  }
  ++live_errors;
  return &told;
}

static PJRT_Error* ClientCreate(PJRT_Client_Create_Args* args) {
  if (Is("error")) return Refuse();
  if (Is("options")) return TellOptions(args);
  args->client = (PJRT_Client*)&refusal;
  return NULL;
}
static PJRT_Error* ClientDestroy(PJRT_Client_Destroy_Args* args) { return NULL; }
static PJRT_Error* AddressableDevices(PJRT_Client_AddressableDevices_Args* args) {
  static PJRT_Device* devices[] = {(PJRT_Device*)&refusal};
  args->addressable_devices = devices;
  args->num_addressable_devices = Is("compile_error") || Is("execute_error") || Is("late_error") || Is("stuck");
  return NULL;
}
static PJRT_Error* PlatformName(PJRT_Client_PlatformName_Args* args) {
  args->platform_name = "fake";
  args->platform_name_size = 4;
  return NULL;
}
static PJRT_Error* PlatformVersion(PJRT_Client_PlatformVersion_Args* args) {
  args->platform_version = "0";
  args->platform_version_size = 1;
  return NULL;
}

// ---- the device of compile_error, execute_error, late_error and stuck ---------------------------------------------

// Handles stand for nothing: any address that is not null.
#define HANDLE(Type) ((Type*)&refusal)

static PJRT_Error* MemoryStats(PJRT_Device_MemoryStats_Args* args) {
  args->bytes_in_use = 3000;
  args->peak_bytes_in_use = 4000;
  args->peak_bytes_in_use_is_set = true;
  args->bytes_limit = 1 << 20;
  args->bytes_limit_is_set = true;
  return NULL;
}
static PJRT_Error* Compile(PJRT_Client_Compile_Args* args) {
  if (Is("compile_error")) return Refuse();
  args->executable = HANDLE(PJRT_LoadedExecutable);
  return NULL;
}
static PJRT_Error* ExecutableDestroy(PJRT_LoadedExecutable_Destroy_Args* args) { return NULL; }
static PJRT_Error* Upload(PJRT_Client_BufferFromHostBuffer_Args* args) {
  args->buffer = HANDLE(PJRT_Buffer);
  return NULL;
}
static PJRT_Error* BufferDestroy(PJRT_Buffer_Destroy_Args* args) { return NULL; }
// Launches of "stuck"; an event's handle is its launch's number.
static int launches = 0, released = 0;

static PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  if (Is("execute_error")) return Refuse();
  args->output_lists[0][0] = HANDLE(PJRT_Buffer);
  args->device_complete_events[0] =
      Is("stuck") ? (PJRT_Event*)(intptr_t)__sync_add_and_fetch(&launches, 1) : HANDLE(PJRT_Event);
  return NULL;
}
static PJRT_Error* Await(PJRT_Event_Await_Args* args) {
  if (!Is("stuck")) return Refuse();
  while ((intptr_t)args->event == 1 && !__sync_fetch_and_add(&released, 0)) usleep(1000);
  return NULL;
}
static PJRT_Error* EventDestroy(PJRT_Event_Destroy_Args* args) { return NULL; }

// How many errors were given and not destroyed.
__attribute__((visibility("default"))) int FakePluginLiveErrors(void) { return live_errors; }

// Lets the first launch of "stuck" end.
__attribute__((visibility("default"))) void FakePluginRelease(void) { __sync_add_and_fetch(&released, 1); }

__attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi(void) {
  static PJRT_Api api;
  memset(&api, 0, sizeof api);
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  api.pjrt_api_version.major_version = Is("too_new") ? PJRT_API_MAJOR + 1 : PJRT_API_MAJOR;
  api.pjrt_api_version.minor_version = Is("too_old") ? 3 : PJRT_API_MINOR;
  api.PJRT_Error_Destroy = ErrorDestroy;
  api.PJRT_Error_Message = ErrorMessage;
  api.PJRT_Error_GetCode = ErrorGetCode;
  api.PJRT_Plugin_Initialize = PluginInitialize;
  api.PJRT_Plugin_Attributes = PluginAttributes;
  api.PJRT_Client_Create = Is("missing") ? NULL : ClientCreate;
  api.PJRT_Client_Destroy = ClientDestroy;
  api.PJRT_Client_AddressableDevices = AddressableDevices;
  api.PJRT_Client_PlatformName = PlatformName;
  api.PJRT_Client_PlatformVersion = PlatformVersion;
  api.PJRT_Client_Compile = Compile;
  api.PJRT_Client_BufferFromHostBuffer = Upload;
  api.PJRT_Device_MemoryStats = MemoryStats;
  api.PJRT_LoadedExecutable_Destroy = ExecutableDestroy;
  api.PJRT_LoadedExecutable_Execute = Execute;
  api.PJRT_Buffer_Destroy = BufferDestroy;
  api.PJRT_Event_Await = Await;
  api.PJRT_Event_Destroy = EventDestroy;
  return &api;
}
