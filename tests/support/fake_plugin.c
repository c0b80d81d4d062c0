// A PJRT plugin that misbehaves as FAKE_PLUGIN says: too_old, too_new, missing, error, abort, hang; else it comes up and
// has no devices. Built once, loaded by tests through its path.
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

static PJRT_Error* ClientCreate(PJRT_Client_Create_Args* args) {
  if (Is("error")) return Refuse();
  args->client = (PJRT_Client*)&refusal;
  return NULL;
}
static PJRT_Error* ClientDestroy(PJRT_Client_Destroy_Args* args) { return NULL; }
static PJRT_Error* AddressableDevices(PJRT_Client_AddressableDevices_Args* args) {
  args->num_addressable_devices = 0;
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

// How many errors were given and not destroyed.
__attribute__((visibility("default"))) int FakePluginLiveErrors(void) { return live_errors; }

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
  return &api;
}
