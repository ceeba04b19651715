"""AlterUserScramCredentials (API key 51). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bytes, Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class ScramCredentialDeletion(Struct):
    name: String = wire(0, 0)
    mechanism: Int8 = wire(0, 0)


@struct
class ScramCredentialUpsertion(Struct):
    name: String = wire(0, 0)
    mechanism: Int8 = wire(0, 0)
    iterations: Int32 = wire(0, 0)
    salt: Bytes = wire(0, 0)
    salted_password: Bytes = wire(0, 0)


@struct
class AlterUserScramCredentialsRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    deletions: list[ScramCredentialDeletion] = wire(0, 0)
    upsertions: list[ScramCredentialUpsertion] = wire(0, 0)


@struct
class AlterUserScramCredentialsResult(Struct):
    user: String = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0)


@struct
class AlterUserScramCredentialsResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    results: list[AlterUserScramCredentialsResult] = wire(0, 0)
