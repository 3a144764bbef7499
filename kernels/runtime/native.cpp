#include "native.h"

const float kExpLimit = 87.0f;
const double kExpLimitDouble = 700.0;
