// What NVRTC declares by itself, for editors and for check_kernels.py: as much of it as src/kernels
// uses. Nothing is compiled with it.
#pragma once

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __grid_constant__ __attribute__((grid_constant))
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
};
extern const __device__ dim3 threadIdx, blockIdx, blockDim, gridDim;

__device__ int __shfl_sync(unsigned lanes, int x, int from);
__device__ float __shfl_xor_sync(unsigned lanes, float x, int mask);
__device__ unsigned __shfl_xor_sync(unsigned lanes, unsigned x, int mask);
__device__ unsigned __ballot_sync(unsigned lanes, bool x);
__device__ int __any_sync(unsigned lanes, bool x);
__device__ int __ffs(int x);
__device__ void __syncthreads();
__device__ void __syncwarp();
__device__ unsigned __byte_perm(unsigned a, unsigned b, unsigned selector);
__device__ unsigned __float_as_uint(float x);
__device__ float __uint_as_float(unsigned x);
__device__ float fmaxf(float a, float b);
__device__ float fabsf(float x);
__device__ float fmaf(float a, float b, float c);
__device__ float __fmul_rn(float a, float b);
__device__ float sqrtf(float x);
__device__ float floorf(float x);
__device__ float rintf(float x);
__device__ float copysignf(float x, float sign);
__device__ float atomicAdd(float* at, float x);
__device__ unsigned atomicAdd(unsigned* at, unsigned x);
__device__ unsigned long long atomicAdd(unsigned long long* at, unsigned long long x);
__device__ decltype(sizeof(0)) __cvta_generic_to_shared(const void* p);
