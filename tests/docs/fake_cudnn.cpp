// What examples/cudnn_batch_norm.py calls of cuDNN, with the parameters that cudnn_ops.h has, on memory of the host.
#include <cmath>

namespace {

struct Tensor {
  int n, c, h, w;
  int inner() const { return h * w; }
  int at(int sample, int channel, int pixel) const { return (sample * c + channel) * inner() + pixel; }
  int count() const { return n * inner(); }
};

constexpr int kOk = 0, kBadParam = 3, kNchw = 0, kFloat = 0, kSpatial = 1;
int handle_of_all;

template <typename Value>
double Sum(const Tensor& t, Value value) {
  double sum = 0;
  for (int n = 0; n < t.n; ++n)
    for (int p = 0; p < t.inner(); ++p) sum += value(n, p);
  return sum;
}

void Moments(const Tensor& t, const float* x, int c, double* mean, double* var) {
  *mean = Sum(t, [&](int n, int p) { return double(x[t.at(n, c, p)]); }) / t.count();
  *var = Sum(t, [&](int n, int p) { return std::pow(x[t.at(n, c, p)] - *mean, 2); }) / t.count();
}

bool AreBlends(const void* alpha, const void* beta) {
  return *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
}

}  // namespace

extern "C" {

int cudnnCreate(void** handle) {
  *handle = &handle_of_all;
  return kOk;
}

int cudnnCreateTensorDescriptor(void** made) {
  *made = new Tensor{};
  return kOk;
}

int cudnnSetTensor4dDescriptor(void* tensor, int format, int type, int n, int c, int h, int w) {
  if (format != kNchw || type != kFloat) return kBadParam;
  *static_cast<Tensor*>(tensor) = {n, c, h, w};
  return kOk;
}

int cudnnBatchNormalizationForwardTraining(void* handle, int mode, const void* alpha, const void* beta, const Tensor* of_x,
                                           const float* x, const Tensor* of_y, float* y, const Tensor* of_c,
                                           const float* scale, const float* bias, double factor, float* running_mean,
                                           float* running_var, double epsilon, float* saved_mean, float* saved_invstd) {
  if (handle != &handle_of_all || mode != kSpatial || !AreBlends(alpha, beta) || of_c->c != of_x->c) return kBadParam;
  for (int c = 0; c < of_x->c; ++c) {
    double mean, var;
    Moments(*of_x, x, c, &mean, &var);
    const double invstd = 1 / std::sqrt(var + epsilon), count = of_x->count();
    for (int n = 0; n < of_x->n; ++n)
      for (int p = 0; p < of_x->inner(); ++p)
        y[of_y->at(n, c, p)] = scale[c] * (x[of_x->at(n, c, p)] - mean) * invstd + bias[c];
    running_mean[c] = (1 - factor) * running_mean[c] + factor * mean;
    running_var[c] = (1 - factor) * running_var[c] + factor * var * count / (count - 1);
    saved_mean[c] = mean;
    saved_invstd[c] = invstd;
  }
  return kOk;
}

int cudnnBatchNormalizationForwardInference(void* handle, int mode, const void* alpha, const void* beta, const Tensor* of_x,
                                            const float* x, const Tensor* of_y, float* y, const Tensor* of_c,
                                            const float* scale, const float* bias, const float* mean, const float* var,
                                            double epsilon) {
  if (handle != &handle_of_all || mode != kSpatial || !AreBlends(alpha, beta) || of_c->c != of_x->c) return kBadParam;
  for (int c = 0; c < of_x->c; ++c)
    for (int n = 0; n < of_x->n; ++n)
      for (int p = 0; p < of_x->inner(); ++p)
        y[of_y->at(n, c, p)] = scale[c] * (x[of_x->at(n, c, p)] - mean[c]) / std::sqrt(var[c] + epsilon) + bias[c];
  return kOk;
}

int cudnnBatchNormalizationBackward(void* handle, int mode, const void* alpha, const void* beta, const void* alpha_of_c,
                                    const void* beta_of_c, const Tensor* of_x, const float* x, const Tensor* of_dy,
                                    const float* dy, const Tensor* of_dx, float* dx, const Tensor* of_c, const float* scale,
                                    float* dscale, float* dbias, double epsilon, const float* saved_mean,
                                    const float* saved_invstd) {
  if (handle != &handle_of_all || mode != kSpatial || !AreBlends(alpha, beta) || !AreBlends(alpha_of_c, beta_of_c) ||
      of_c->c != of_x->c)
    return kBadParam;
  for (int c = 0; c < of_x->c; ++c) {
    double mean, var;
    Moments(*of_x, x, c, &mean, &var);
    double invstd = 1 / std::sqrt(var + epsilon);
    if (saved_mean) mean = saved_mean[c], invstd = saved_invstd[c];
    const auto standard = [&](int n, int p) { return (x[of_x->at(n, c, p)] - mean) * invstd; };
    const double bias = Sum(*of_x, [&](int n, int p) { return double(dy[of_dy->at(n, c, p)]); });
    const double along = Sum(*of_x, [&](int n, int p) { return dy[of_dy->at(n, c, p)] * standard(n, p); });
    for (int n = 0; n < of_x->n; ++n)
      for (int p = 0; p < of_x->inner(); ++p)
        dx[of_dx->at(n, c, p)] =
            scale[c] * invstd * (dy[of_dy->at(n, c, p)] - (bias + standard(n, p) * along) / of_x->count());
    dscale[c] = along;
    dbias[c] = bias;
  }
  return kOk;
}
}
