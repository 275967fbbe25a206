/* The trunk that a shape names. */
#include "network.h"

static const trunk *trunk_of(const network_shape *shape) {
    switch (shape->kind) {
        case NATURE: return shape->height == 64 ? &nature64_trunk : &nature84_trunk;
        case SMALL_IMAGE: return &small_image_trunk;
        default: return &impala_trunk;
    }
}

size_t trunk_packed_floats(const network_shape *shape) { return trunk_of(shape)->packed_floats(shape); }
size_t trunk_saved_floats(const network_shape *shape, int samples, int keep) { return trunk_of(shape)->saved_floats(shape, samples, keep); }
size_t trunk_scratch_floats(const network_shape *shape, int samples) { return trunk_of(shape)->scratch_floats(shape, samples); }

void trunk_prepare_scratch(const network_shape *shape, float *scratch, int samples) {
    if (trunk_of(shape)->prepare_scratch) trunk_of(shape)->prepare_scratch(shape, scratch, samples);
}

void trunk_pack(const network_shape *shape, const_pointers parameters, int backward, float *packed, float *scratch) {
    trunk_of(shape)->pack(shape, parameters, backward, packed, scratch);
}

void trunk_forward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed, int keep,
                   float *place, float *scratch, float *features) {
    trunk_of(shape)->forward(shape, pixels, samples, parameters, packed, keep, place, scratch, features);
}

void trunk_backward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed,
                    float *place, float *scratch, const float *features, const float *dfeatures, pointers gradients) {
    trunk_of(shape)->backward(shape, pixels, samples, parameters, packed, place, scratch, features, dfeatures, gradients);
}

void trunk_layer(const network_shape *shape, int layer, int backward, const uint8_t *pixels, int samples, const_pointers parameters,
                 const float *packed, float *place, float *scratch, float *features, pointers gradients) {
    trunk_of(shape)->layer(shape, layer, backward, pixels, samples, parameters, packed, place, scratch, features, gradients);
}
