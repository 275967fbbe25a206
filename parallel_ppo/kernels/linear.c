#include "api.h"
#include "linear.h"

size_t linear_layer_scratch_floats(int inputs, int outputs, int samples) {
    return linear_scratch(samples, inputs, outputs) + (size_t)outputs * padded(samples);
}

void linear_layer_forward(int inputs, int outputs, const float *x, int samples, const float *w, const float *bias, int relu, float *scratch,
                          float *out) {
    linear_forward(inputs, outputs, x, samples, w, bias, relu, scratch, scratch + linear_scratch(samples, inputs, outputs), out);
}

void linear_layer_backward(int inputs, int outputs, const float *x, int samples, const float *w, const float *out, const float *dout, int relu,
                           float *scratch, float *dw, float *db, float *dx) {
    linear_backward(inputs, outputs, x, samples, w, out, dout, relu, 0, scratch, scratch + linear_scratch(samples, inputs, outputs), dw, db,
                    dx);
}
