// Results that do not depend on the batch.
#pragma once

namespace mk {

// Whether the bits of a row of the result must not depend on other rows, nor on their number.
template <class Config>
concept BatchInvariant = requires { Config::kBatchInvariant; };

}  // namespace mk
