"""DescribeDelegationToken (API key 41). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bytes, Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class DescribeDelegationTokenOwner(Struct):
    principal_type: String = wire(1, 3)
    principal_name: String = wire(1, 3)


@struct
class DescribeDelegationTokenRequest(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    owners: list[DescribeDelegationTokenOwner] | None = wire(1, 3)


@struct
class DescribedDelegationTokenRenewer(Struct):
    principal_type: String = wire(1, 3)
    principal_name: String = wire(1, 3)


@struct
class DescribedDelegationToken(Struct):
    principal_type: String = wire(1, 3)
    principal_name: String = wire(1, 3)
    token_requester_principal_type: String = wire(3, 3)
    token_requester_principal_name: String = wire(3, 3)
    issue_timestamp: Int64 = wire(1, 3)
    expiry_timestamp: Int64 = wire(1, 3)
    max_timestamp: Int64 = wire(1, 3)
    token_id: String = wire(1, 3)
    hmac: Bytes = wire(1, 3)
    renewers: list[DescribedDelegationTokenRenewer] = wire(1, 3)


@struct
class DescribeDelegationTokenResponse(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    error_code: Int16 = wire(1, 3)
    tokens: list[DescribedDelegationToken] = wire(1, 3)
    throttle_time_ms: Int32 = wire(1, 3)
