// A CUDA device that does nothing: device guards and hooks that let fake cuda tensors pass through autograd in a build of
// torch without CUDA. It has two GPUs, and every thread has its current one.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

thread_local c10::DeviceIndex current = 0;
constexpr c10::DeviceIndex kDevices = 2;

c10::Device place(c10::DeviceIndex index) {
  return {c10::DeviceType::CUDA, index};
}

c10::Stream stream(c10::Device device) {
  return c10::Stream(c10::Stream::DEFAULT, place(device.has_index() ? device.index() : current));
}

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::CUDA;
  c10::DeviceType type() const override {
    return static_type;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return place(current);
  }
  void setDevice(c10::Device device) const override {
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return stream(device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream(device);
  }
  c10::Stream exchangeStream(c10::Stream given) const noexcept override {
    return stream(given.device());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace

extern "C" void eblvm_set_device(int index) {
  current = static_cast<c10::DeviceIndex>(index);
}

extern "C" int eblvm_current_device() {
  return current;
}

namespace at {

struct CUDAHooks : public CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override {
    return true;
  }
  bool hasCuDNN() const override {
    return true;
  }
  bool compiledWithCuDNN() const override {
    return true;
  }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override {
    return true;
  }
  long versionCuDNN() const override {
    return 91000;
  }
  long versionRuntimeCuDNN() const override {
    return 91000;
  }
  long versionCuDNNFrontend() const override {
    return 11000;
  }
  double batchnormMinEpsilonCuDNN() const override {
    return 1e-5;
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return kDevices;
  }
  DeviceIndex getCurrentDevice() const override {
    return current;
  }
  DeviceIndex current_device() const override {
    return current;
  }
  void setCurrentDevice(DeviceIndex index) const override {
    current = index;
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    auto before = current;
    if (index >= 0) current = index;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  int getNumGPUs() const override {
    return kDevices;
  }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
