"""CreateDelegationToken (API key 38). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bytes, Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class CreatableRenewers(Struct):
    principal_type: String = wire(1, 3)
    principal_name: String = wire(1, 3)


@struct
class CreateDelegationTokenRequest(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    owner_principal_type: String | None = wire(3, 3)
    owner_principal_name: String | None = wire(3, 3)
    renewers: list[CreatableRenewers] = wire(1, 3)
    max_lifetime_ms: Int64 = wire(1, 3)


@struct
class CreateDelegationTokenResponse(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    error_code: Int16 = wire(1, 3)
    principal_type: String = wire(1, 3)
    principal_name: String = wire(1, 3)
    token_requester_principal_type: String = wire(3, 3)
    token_requester_principal_name: String = wire(3, 3)
    issue_timestamp_ms: Int64 = wire(1, 3)
    expiry_timestamp_ms: Int64 = wire(1, 3)
    max_timestamp_ms: Int64 = wire(1, 3)
    token_id: String = wire(1, 3)
    hmac: Bytes = wire(1, 3)
    throttle_time_ms: Int32 = wire(1, 3)
